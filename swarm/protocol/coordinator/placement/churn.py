"""How often peers leave, and what follows: how many replicas a stage should have, how long an arrangement lasts."""

from __future__ import annotations

import math

PRIOR_PER_S = 0.6 / 3600
"""Departures of one peer a second, before any was seen: spot machines live about an hour (0.55–0.61 per hour)."""
PRIOR_WEIGHT_S = 10 * 3600.0
"""So many peer-seconds of experience that is worth: ten peers for an hour."""
DEATH_IN_A_REDUCE = 0.1
"""The chance that somebody dies while a stage reduces is to stay below this: its survivors must then reduce again."""


class Churn:
    """Departures over presence, as the coordinator sees both. A restart is a departure: it costs as much."""

    def __init__(self) -> None:
        self._departures = 0
        self._presence_s = 0.0
        self._present = 0
        self._since = 0.0

    def present(self, peers: int, now: float) -> None:
        """So many are there from now on."""
        if self._present:
            self._presence_s += self._present * max(0.0, now - self._since)
        self._present, self._since = peers, now

    def left(self) -> None:
        self._departures += 1

    @property
    def departures_per_s(self) -> float:
        """Of one peer: what was seen, and what is usual, weighed by how long each was seen (a Gamma prior's mean)."""
        return (self._departures + PRIOR_PER_S * PRIOR_WEIGHT_S) / (self._presence_s + PRIOR_WEIGHT_S)


def replica_cap(departures_per_s: float, reduce_s: float, microbatches: int, planned: int) -> int:
    """As many replicas as a stage may have: those of an undisturbed reduce, and no more than there are microbatches.

    The others would have nothing to do. At least what is planned. `reduce_s` grows with what is measured; until then
    the caller gives the longest that a reduce may take.
    """
    return max(planned, 1, min(microbatches, undisturbed_replicas(departures_per_s, reduce_s)))


def undisturbed_replicas(departures_per_s: float, reduce_s: float) -> int:
    """With so many a reduce of `reduce_s` seconds is seldom disturbed by a death.

    With `R` peers, each of which leaves with rate `λ`, a reduce of `d` seconds is disturbed with probability
    `1 − exp(−R·λ·d)`; that stays below `DEATH_IN_A_REDUCE`.
    """
    disturbed = departures_per_s * max(reduce_s, 1e-9)
    return int(min(-math.log(1.0 - DEATH_IN_A_REDUCE) / max(disturbed, 1e-12), 65_535.0))


def expected_quiet_s(departures_per_s: float, peers: int) -> float:
    """Seconds until one of `peers` leaves or another one comes to them, if as many come as leave."""
    return 1.0 / (2.0 * departures_per_s * max(1, peers))
