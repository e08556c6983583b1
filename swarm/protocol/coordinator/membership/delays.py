"""Which peers cost the run more time than their work saves. These go on probation, so they get less work.

A peer that is slow, or whose line is slow, may hold up its siblings in every step. So may an insider that answers just
before each deadline. This class keeps an account of each peer. In each decided step, the account grows by the time for
which the peer held up the step. It shrinks by the time that the peer's work saved its siblings, and by a tenth of the
step's duration. From a limit on, the peer goes on probation for longer the more it owes. In the long run, no peer makes
a run more than about a tenth slower than it would be without the peer. If the peer is alone in its stage, another one
may take a place beside it.

It then stays away for at least as many usual steps as take the time that it owes. Otherwise a peer that costs the time
of ten short steps would be back after one. A peer that is removed from a step by its own fault stays away from the
first time on, because nobody doubts then that it has cost the time: as long as it has held the step up, and twice as
long after each further strike.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.probation import LONGEST, MOST_STRIKES, Probation
from swarm.protocol.ids import PassId
from swarm.protocol.timeouts import Observed

TOLERATED = 0.1
"""A person's peers may hold up a run for this share of the time, in addition to what their work saves."""
LIMIT_STEPS = 3
"""The limit, in usual steps. The time for which peers hold up steps does not count: otherwise a peer that is late in
every step would raise its own limit.
"""
LIMIT_BEATS, LIMIT_BUDGET = 10, 1 / 6
"""Lower bounds of the limit, in heartbeats and as a fraction of the step budget. Reports come once per heartbeat, so
short delays say little. And the first reductions over a link that works in one direction only take so long.
"""
REMEMBERED = 4096
"""Number of accounts that are kept: the newest ones."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a peer may owe, when a step is decided."""

    owed_s: float
    """Seconds that a peer may owe before it goes on probation."""
    usual_s: float
    """Usual seconds of a step, without the time for which peers hold it up."""


@dataclass(frozen=True, slots=True)
class Charged:
    """A peer goes on probation for its delays."""

    strikes: int
    """What it has now."""
    steps: int
    """Number of the next steps that it is left out of."""


class Delays:
    def __init__(self, probation: Probation, people: People) -> None:
        self._probation = probation
        self._people = people
        self._owed: dict[str, float] = {}
        self._undelayed = Observed()
        self._alone: set[str] = set()
        """Peers that owe more than the limit, or did, and were alone in their stage then. They still owe something."""

    def limit(self, step_s: float, lost_s: float, heartbeat_s: float, budget_s: float) -> Limit:
        """The limit for a step that took `step_s` seconds, in `lost_s` of which some peer held it up."""
        self._undelayed.add(max(0.0, step_s - lost_s))
        usual_s = self._undelayed.quantile(0.5) or 0.0
        return Limit(max(LIMIT_STEPS * usual_s, LIMIT_BEATS * heartbeat_s, LIMIT_BUDGET * budget_s), usual_s)

    def decided(
        self,
        peer: str,
        pass_id: PassId,
        held_up_s: float,
        saved_s: float,
        step_s: float,
        limit: Limit,
        *,
        alone: bool = False,
        removed: bool = False,
    ) -> Charged | None:
        """A step is decided. Return what follows if the peer goes on probation for its delays, otherwise None.

        `held_up_s`: seconds for which the peer held up the step. `saved_s`: seconds by which its work shortened the
        step. `step_s`: the step's duration. `alone`: True if the stage has no other peer. `removed`: True if the peer
        was removed from the step by its own fault.
        """
        most = MOST_STRIKES * limit.owed_s
        before = self._owed.pop(peer, 0.0)
        owed = min(most, before + held_up_s - min(saved_s, step_s) - self._tolerated(peer) * step_s)
        if owed <= 0.0:
            self._alone.discard(peer)
            return None
        self._owed[peer] = owed
        if len(self._owed) > REMEMBERED:
            self._forget(next(iter(self._owed)))
        level = int(owed / limit.owed_s)
        if owed <= before or not (level or removed):
            return None
        away_s = owed
        if removed:
            away_s = held_up_s * 2.0 ** max(0, self._probation.strikes(peer) - 1)
        steps = math.ceil(min(away_s / limit.usual_s, LONGEST)) if limit.usual_s else 0
        left_out = self._probation.hold(peer, pass_id, level, steps)
        if alone:
            self._alone.add(peer)
        return Charged(self._probation.strikes(peer), left_out)

    def was_alone(self, peer: str) -> bool:
        """Return True if the peer delayed the run alone, and still owes for it: others should take a place beside
        it.
        """
        return peer in self._alone

    def _tolerated(self, peer: str) -> float:
        """The share of the time for which the peer may hold up a run. All devices of a person that owe something share
        it.
        """
        person = self._people.of(peer)
        return TOLERATED / len({peer, *(each for each in self._owed if self._people.of(each) == person)})

    def _forget(self, peer: str) -> None:
        del self._owed[peer]
        self._alone.discard(peer)

    def passed(self, step_s: float, workers: frozenset[str]) -> None:
        """A step of this duration is decided. Peers other than `workers` owe less from now on."""
        owing = Counter(self._people.of(peer) for peer in self._owed)
        for peer in [peer for peer in self._owed if peer not in workers]:
            person = self._people.of(peer)
            self._owed[peer] -= TOLERATED / owing[person] * step_s
            if self._owed[peer] <= 0.0:
                self._forget(peer)
                owing[person] -= 1
