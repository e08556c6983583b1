"""What earlier passes teach the next one: pairs that cannot talk, what has failed in this step."""

from __future__ import annotations

from swarm.protocol.ids import Actor, Microbatch, PassId
from swarm.protocol.probation import Probation
from swarm.protocol.wiring import Pair

BLOCKED_STEPS = 10
"""For how many steps a pair that could not talk is not made neighbours."""
MAX_FAILED = 8
"""So many attempts at one step may be given up because somebody failed: it does not depend on who computes, then."""


class Experience:
    """`aborts`, `nonfinite` and all failures are of the step that is not decided yet; the rest outlives it."""

    def __init__(self) -> None:
        self.aborts = 0
        """Passes given up since the last decision."""
        self.nonfinite = 0
        """1 when something of this step was not finite: the next attempt is wired another way round, and may skip."""
        self.failed_attempts = 0
        """At this step, given up because somebody failed."""
        self.rest_until = 0.0
        """The next attempt opens no sooner."""
        self.probation = Probation()
        self._blocked: dict[Pair, int] = {}
        self._failures: dict[tuple[int, int, int, Microbatch], set[str]] = {}
        """(step, index of the pass, stage, microbatch) → peers that failed on it. A restarted peer is no second one."""

    def unreachable(self, one: Actor, other: Actor, version: int) -> None:
        self._blocked = {pair: until for pair, until in self._blocked.items() if until > version}
        self._blocked[Pair((one, other))] = version + BLOCKED_STEPS

    def blocked(self, version: int) -> frozenset[Pair]:
        """Pairs that are not to be made neighbours in the pass after `version` steps."""
        return frozenset(pair for pair, until in self._blocked.items() if until > version)

    def failed(self, pass_id: PassId, stage: int, m: Microbatch, actor: Actor) -> bool:
        """`actor` failed on a microbatch that is its own. True when another peer of its stage has failed on it too."""
        those = self._failures.setdefault((pass_id.step, pass_id.index, stage, m), set())
        those.add(actor.peer)
        return len(those) > 1

    def not_finite(self) -> None:
        """The next attempt is to skip the step if it is so again. What failed for that reason does not then."""
        self.nonfinite = 1
        self._failures.clear()

    def attempt_failed(self, now: float, heartbeat_s: float) -> bool:
        """Somebody failed, so the step must be run again: at once the first time, later and later from then on.

        False: it has been tried often enough.
        """
        self.failed_attempts += 1
        self.rest_until = now + heartbeat_s * (2 ** (self.failed_attempts - 1) - 1)
        return self.failed_attempts < MAX_FAILED

    def decided(self) -> None:
        self.aborts = self.nonfinite = self.failed_attempts = 0
        self._failures.clear()
