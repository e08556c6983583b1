"""The meter: a record of what the compute thread did and when, for people.

The compute thread writes it, another thread reads it; neither waits for the other. It costs about 1 µs per microbatch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from swarm.protocol.messages import WORK_KINDS

FORWARD, BACKWARD, WAITING, REDUCING, APPLYING, RECOVERING = range(len(WORK_KINDS))
MOST_KEPT = 1 << 15
"""Largest number of unread stretches; the oldest are dropped."""


class Stretch(NamedTuple):
    """A period of one kind of work, from `start` to `end` in seconds of the meter's clock."""

    kind: int
    """Index into WORK_KINDS."""
    microbatch: int
    """−1: none."""
    start: float
    end: float


class Meter:
    """Call `begin`, `end`, `add` and `rest` in the compute thread, `read` in another thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._done: deque[Stretch] = deque(maxlen=MOST_KEPT)
        self._current: tuple[int, int, float] | None = None

    def begin(self, kind: int, microbatch: int = -1) -> None:
        self._current = kind, microbatch, self.clock()

    def end(self, waited_s: float = 0.0, turned_at: float = 0.0) -> None:
        """End the current work.

        `waited_s`: idle seconds at its start; `turned_at`: if within it, start of the backward.
        """
        assert self._current is not None
        kind, microbatch, start = self._current
        self.add(kind, microbatch, start + waited_s, self.clock(), turned_at)

    def add(self, kind: int, microbatch: int, start: float, end: float, turned_at: float = 0.0) -> None:
        """Record work of a device from `start` to `end`; the device may already be doing the next work."""
        if start < turned_at < end:
            self._done.append(Stretch(kind, microbatch, start, turned_at))
            kind, start = BACKWARD, turned_at
        self._done.append(Stretch(kind, microbatch, start, end))
        self._current = None

    def rest(self) -> None:
        """Record that no work is in progress."""
        self._current = None

    def read(self) -> list[Stretch]:
        """The work finished since the last call, in order, without the work in progress."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def current(self) -> Stretch | None:
        """The work in progress, up to now; None if there is none."""
        current = self._current
        return None if current is None else Stretch(*current, self.clock())
