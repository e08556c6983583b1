"""Estimates how often peers leave. The number of replicas of a stage and the expected life of an assignment depend on
it.
"""

from __future__ import annotations

import math

PRIOR_PER_S = 0.6 / 3600
"""Departures per peer and second, assumed before any were seen: spot machines live about an hour (0.55–0.61 departures
per hour).
"""
PRIOR_WEIGHT_S = 10 * 3600.0
"""Weight of this assumption, in peer-seconds: as if ten peers had been observed for an hour."""
AGAIN_S = 900.0
"""A device counts at most once in this number of seconds. Otherwise, one device that comes and goes all the time would
make all peers look unreliable, and stages would get fewer replicas.
"""
REMEMBERED = 4096
"""Number of devices whose last departure is remembered."""
DEATH_IN_A_REDUCE = 0.1
"""The probability that a peer dies during a reduction should stay below this, because the survivors must then reduce
again.
"""


class Churn:
    """The number of departures divided by the time for which peers were present, as the coordinator has seen both. A
    restart counts as a departure, because it costs as much.
    """

    def __init__(self) -> None:
        self._departures = 0
        self._left_at: dict[str, float] = {}
        """For each device (peer id), when its last departure that counts took place."""
        self._presence_s = 0.0
        self._present = 0
        self._since = 0.0

    def present(self, peers: int, now: float) -> None:
        """Record that this number of peers is present from `now` on."""
        if self._present:
            self._presence_s += self._present * max(0.0, now - self._since)
        self._present, self._since = peers, now

    def left(self, peer: str, now: float) -> None:
        """A device is gone, perhaps because it was restarted."""
        before = self._left_at.get(peer)
        if before is not None and now - before < AGAIN_S:
            return
        self._left_at.pop(peer, None)
        self._left_at[peer] = now
        if len(self._left_at) > REMEMBERED:
            del self._left_at[next(iter(self._left_at))]
        self._departures += 1

    @property
    def departures_per_s(self) -> float:
        """Departures per peer and second: the observed rate and the assumed one, weighted by time (mean of a Gamma
        posterior).
        """
        return (self._departures + PRIOR_PER_S * PRIOR_WEIGHT_S) / (self._presence_s + PRIOR_WEIGHT_S)


def replica_cap(departures_per_s: float, reduce_s: float, microbatches: int, planned: int) -> int:
    """Largest number of replicas of a stage: reductions must rarely be disturbed, and each replica needs a microbatch.

    The result is at least `planned`. `reduce_s`: measured seconds of a reduction; before the first measurement, the
    caller passes the longest time that a reduction may take.
    """
    return max(planned, 1, min(microbatches, undisturbed_replicas(departures_per_s, reduce_s)))


def undisturbed_replicas(departures_per_s: float, reduce_s: float) -> int:
    """Number of replicas with which a reduction of `reduce_s` seconds is rarely disturbed by a death.

    With `R` peers, each of which leaves with rate `λ`, a reduction of `d` seconds is disturbed with probability `1 −
    exp(−R·λ·d)`. This must stay below `DEATH_IN_A_REDUCE`.
    """
    disturbed = departures_per_s * max(reduce_s, 1e-9)
    return int(min(-math.log(1.0 - DEATH_IN_A_REDUCE) / max(disturbed, 1e-12), 65_535.0))


def expected_quiet_s(departures_per_s: float, peers: int) -> float:
    """Expected seconds until one of `peers` leaves or another peer joins, assuming that as many join as leave."""
    return 1.0 / (2.0 * departures_per_s * max(1, peers))
