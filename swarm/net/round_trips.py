"""Round-trip times of pings to other actors. They include the time that the other process needs to answer.

The result is the minimum of the last few pings. If a process is busy, or frames are queued before a ping, this ping
takes longer, but the minimum stays.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Ping

KEPT = 4
MOST = 1024
"""Largest number of remembered actors, and of unanswered pings; the oldest is forgotten first."""


class RoundTrips:
    """The measured round-trip times of one process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._number = 0
        self._asked: dict[int, tuple[Actor, float]] = {}
        self._seconds: dict[Actor, deque[float]] = {}

    def ping(self, actor: Actor) -> Ping:
        """The ping to send to an actor."""
        self._number += 1
        self._asked[self._number] = actor, self._clock()
        _forget_first(self._asked)
        return Ping(self._number)

    def answered(self, actor: Actor, number: int) -> None:
        """Record an answer. Answers to pings that were never sent, or sent to another actor, are ignored."""
        asked = self._asked.get(number)
        if asked is None or asked[0] != actor:
            return
        del self._asked[number]
        self._seconds.setdefault(actor, deque(maxlen=KEPT)).append(self._clock() - asked[1])
        _forget_first(self._seconds)

    def is_open(self, number: int) -> bool:
        """Whether a ping is not answered yet."""
        return number in self._asked

    def get(self, actor: Actor) -> float | None:
        """The round-trip time to an actor in seconds; None: unknown."""
        seconds = self._seconds.get(actor)
        return None if seconds is None else min(seconds)


def _forget_first(known: dict) -> None:  # type: ignore[type-arg]
    if len(known) > MOST:
        del known[next(iter(known))]
