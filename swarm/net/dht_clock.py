"""A clock that the nodes of a DHT share, independent of the clock of each machine.

Records in the DHT contain their expiry time, so all nodes must agree on the time; hivemind uses `time.time`. A
volunteer's clock may be wrong by minutes: its records would arrive expired, or the records of others would seem expired
to it. So a node takes the time once from the nodes through which it joins, and continues from there with a monotonic
clock. A node that joins through no other node starts with the time of its machine.

The same clock decides whether a pass has expired. So a node that lies about the time is believed by at most a day.

Importing this module makes hivemind's DHT read the shared time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import hivemind.dht.node
import hivemind.dht.protocol
import hivemind.dht.routing
import hivemind.utils
import hivemind.utils.auth
import hivemind.utils.timed_storage

_READERS = (
    hivemind.dht.node,
    hivemind.dht.protocol,
    hivemind.dht.routing,
    hivemind.utils,
    hivemind.utils.auth,
    hivemind.utils.timed_storage,
)
"""hivemind's modules that have imported `get_dht_time` by name, so that it must be replaced in each of them."""
LEAST_CORRECTION_S = 1.0
"""Smaller differences, in seconds, are ignored: they may be network delay, and hivemind tolerates three seconds."""
MOST_CORRECTION_S = 86_400.0
"""Largest correction of a machine's clock, seconds: more than a wrong time zone makes."""


class Difference(NamedTuple):
    """By how many seconds the clocks of other nodes are ahead, and whether their time was adopted."""

    ahead_s: float = 0.0
    adopted: bool = True


def _steady() -> float:
    """Seconds of a monotonic clock; it also advances while the machine sleeps, if the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class DhtClock:
    """The shared clock. `now` returns the Unix time on which the nodes of the DHT agree."""

    def __init__(self, wall: Callable[[], float] = lambda: time.time(), steady: Callable[[], float] = _steady) -> None:
        self._wall = wall
        self._steady = steady
        self._nodes = 0
        self._restart()

    def join(self) -> None:
        """Call when a node starts. The first node of this process sets the clock to the time of this machine."""
        if not self._nodes:
            self._restart()
        self._nodes += 1

    def leave(self) -> None:
        """A node was closed: count it no longer as one that uses the clock."""
        self._nodes -= 1

    def _restart(self) -> None:
        self._offset = self._wall() - self._steady()
        self._corrected_s = 0.0

    def now(self) -> float:
        return self._steady() + self._offset

    def correct(self, others: Iterable[float]) -> Difference:
        """Set the clock to the time of other nodes. `others`: seconds by which each node is ahead of `now`.

        The correction is the median, so one wrong or lying node among three has no effect. Nodes that would set the
        clock further from the machine's than MOST_CORRECTION_S do not count. If there are only such nodes, their time
        is not adopted.
        """
        told = [ahead for ahead in others if math.isfinite(ahead)]
        near = [ahead for ahead in told if abs(self._corrected_s + ahead) <= MOST_CORRECTION_S]
        ahead = statistics.median(near or told or [0.0])
        if abs(ahead) < LEAST_CORRECTION_S:
            return Difference()
        if near:
            self._offset += ahead
            self._corrected_s += ahead
        return Difference(ahead, adopted=bool(near))


CLOCK = DhtClock()
"""The clock of this process."""


def get_dht_time() -> float:
    """The Unix time of this process's DHT, seconds."""
    return CLOCK.now()


for _module in _READERS:
    assert hasattr(_module, "get_dht_time"), f"{_module.__name__} has no get_dht_time: install hivemind 1.1.12"
    _module.get_dht_time = get_dht_time
