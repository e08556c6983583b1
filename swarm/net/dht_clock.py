"""The time that the nodes of a DHT share, independent of each machine's clock.

Records in the DHT name the moment at which they expire, so its nodes must agree on the time; hivemind takes it from
`time.time`. A volunteer's clock may be minutes off: its records would have expired on arrival, or all records that it
looks up would seem expired. So a node takes the time once from the nodes by which it enters, and continues from there
with a monotonic clock. A node that enters by no other begins with its own time.

Importing this module makes hivemind's DHT read the shared time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable

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
"""Modules that keep the function under this name."""
LEAST_CORRECTION_S = 1.0
"""Smaller differences are network delay, and do no harm: hivemind allows three seconds."""


def _steady() -> float:
    """Seconds that grow evenly, also while the machine sleeps, if the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class DhtClock:
    """`now` is the Unix time of the DHT's nodes."""

    def __init__(self, wall: Callable[[], float] = lambda: time.time(), steady: Callable[[], float] = _steady) -> None:
        self._wall = wall
        self._steady = steady
        self._nodes = 0
        self._restart()

    def join(self) -> None:
        """A node begins to use it. The first one of its process starts with this machine's clock, as it is now."""
        if not self._nodes:
            self._restart()
        self._nodes += 1

    def leave(self) -> None:
        """A node is closed."""
        self._nodes -= 1

    def _restart(self) -> None:
        self._offset = self._wall() - self._steady()

    def now(self) -> float:
        return self._steady() + self._offset

    def correct(self, others: Iterable[float]) -> float:
        """Take over the time of others, given how far each is ahead of `now`; returns the correction, seconds.

        It uses the median, so one wrong or lying node among three has no effect.
        """
        sound = [ahead for ahead in others if math.isfinite(ahead)]
        ahead = statistics.median(sound) if sound else 0.0
        if abs(ahead) < LEAST_CORRECTION_S:
            return 0.0
        self._offset += ahead
        return ahead


CLOCK = DhtClock()
"""The clock of this process."""


def get_dht_time() -> float:
    """Unix seconds in the DHT of this process."""
    return CLOCK.now()


for _module in _READERS:
    assert hasattr(_module, "get_dht_time"), f"{_module.__name__} has no get_dht_time: install hivemind 1.1.12"
    _module.get_dht_time = get_dht_time
