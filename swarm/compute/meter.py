"""The meter: what the compute thread did and when, for people to see.

The compute thread writes, another one reads; neither waits for the other. A microbatch costs it about a microsecond.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from swarm.protocol.messages import WORK_KINDS

FORWARD, BACKWARD, WAITING, REDUCING, APPLYING, RECOVERING = range(len(WORK_KINDS))
MOST_KEPT = 1 << 15
"""Stretches that nobody has read; older ones are forgotten."""


class Stretch(NamedTuple):
    """The thread did one thing from `start` to `end`, on the meter's clock in seconds."""

    kind: int
    """Index into WORK_KINDS."""
    microbatch: int
    """−1: none."""
    start: float
    end: float


class Meter:
    """`begin` and `end` in the compute thread, `read` in another one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._done: deque[Stretch] = deque(maxlen=MOST_KEPT)
        self._current: tuple[int, int, float] | None = None

    def begin(self, kind: int, microbatch: int = -1) -> None:
        self._current = kind, microbatch, self.clock()

    def end(self, waited_s: float = 0.0, turned_at: float = 0.0) -> None:
        """`waited_s`: for so long nothing was done at first. `turned_at`: if it is within, backward begins there."""
        assert self._current is not None
        kind, microbatch, start = self._current
        self.add(kind, microbatch, start + waited_s, self.clock(), turned_at)

    def add(self, kind: int, microbatch: int, start: float, end: float, turned_at: float = 0.0) -> None:
        """What a device did from `start` to `end`; it may have begun with something else already."""
        if start < turned_at < end:
            self._done.append(Stretch(kind, microbatch, start, turned_at))
            kind, start = BACKWARD, turned_at
        self._done.append(Stretch(kind, microbatch, start, end))
        self._current = None

    def rest(self) -> None:
        """Nothing is being done."""
        self._current = None

    def read(self) -> list[Stretch]:
        """What the device finished since the last call, in order. Work that is still being done is left out."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def current(self) -> Stretch | None:
        """What is being done, up to now."""
        current = self._current
        return None if current is None else Stretch(*current, self.clock())
