"""What earlier passes teach the next one: pairs that cannot talk, what has failed in this step and with whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from swarm.protocol.coordinator.membership.accusations import Accusations
from swarm.protocol.coordinator.membership.doubts import Doubts
from swarm.protocol.coordinator.membership.halves import Halves
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.ids import Actor, Pair, PassId, StepNumber, Term

BLOCKED_STEPS = 10
"""For how many steps a pair that could not talk is not made neighbours."""
MOST_REST_S = 600.0
"""Between two attempts at a step by the same peers that failed at it, at most."""
MOST_CASTS = 64
"""Of one step, that are tried without a rest."""

MOST_TOLD = 4
"""Failures, in the reason why a step rests."""

Cast = frozenset[str]
"""The peers that do a step, by id."""


class FailureHistory:
    """`aborts`, `nonfinite` and all failures are of the step that is not decided yet; the rest outlives it."""

    def __init__(self) -> None:
        self.aborts = 0
        """Passes given up since the last decision."""
        self.nonfinite = 0
        """1 when something of this step was not finite: the next attempt may skip."""
        self.probation = Probation()
        self.accusations = Accusations()
        self.halves = Halves()
        self.doubts = Doubts()
        self._cast: Cast = frozenset()
        """Of the newest attempt at a step."""
        self._failed_with: Counter[Cast] = Counter()
        """Attempts at this step that were given up because somebody failed, by who did it."""
        self._failed_at = 0.0
        """The last of them."""
        self._why = ""
        """Why that one was given up."""
        self._idlers = Probation()
        """Who held up a forward-only pass. Its steps are the evaluations of this coordinator."""
        self._evaluations = 0
        self._blocked: dict[Pair, int] = {}

    def unreachable(self, one: Actor, other: Actor, version: int) -> None:
        self._blocked = {pair: until for pair, until in self._blocked.items() if until > version}
        self._blocked[Pair((one, other))] = version + BLOCKED_STEPS

    def blocked(self, version: int) -> frozenset[Pair]:
        """Pairs that are not to be made neighbours in the pass after `version` steps."""
        return frozenset(pair for pair, until in self._blocked.items() if until > version)

    # ------------------------------------------------------------ a step that fails

    def not_finite(self) -> None:
        """The next attempt is to skip the step if it is so again. What failed for that reason does not then."""
        self.nonfinite = 1
        self.accusations.nobodys_fault()

    def not_believed(self) -> None:
        """That something of this step is not finite is seen in one place alone: it is found out anew."""
        self.nonfinite = 0
        self.halves.clear()
        self.doubts.forget()

    def leaves_half_out(self, rosters: Sequence[Sequence[Actor]], step: int) -> bool:
        """A step came out not finite, by the work of these. Whether it is to be done again without half of them.

        Not where a microbatch was not finite with all who could compute or send it: then that is known.
        """
        halves = self.halves
        if halves.begun:
            return halves.next()
        return self.nonfinite == 0 and halves.split(rosters, step)

    @property
    def turns(self) -> int:
        """How far the next attempt is to be wired another way round than the first."""
        return self.nonfinite + sum(self._failed_with.values())

    def opened(self, cast: Iterable[Actor]) -> None:
        """An attempt at a step begins, which these can have a part in."""
        self._cast = _peers(cast)

    def attempt_failed(self, why: str, now: float) -> None:
        """It came to nothing, since somebody failed: the step must be run again."""
        if self._cast in self._failed_with or len(self._failed_with) < MOST_CASTS:
            self._failed_with[self._cast] += 1
        self._failed_at, self._why = now, why

    def rest_until(self, cast: Iterable[Actor], heartbeat_s: float) -> float:
        """The next attempt by these opens no sooner: others than have failed at once, the same later and later."""
        times = self._times(cast)
        return self._failed_at + min(MOST_REST_S, heartbeat_s * (2.0 ** min(max(0, times - 1), 30) - 1))

    def why_rests(self, cast: Iterable[Actor], step: int) -> str:
        """What is said while that is waited for: who failed, with whom, and what helps."""
        failures = {(each.stage, each.who, each.senders): each for each in self.accusations.failures}
        told = "; ".join(str(each) for each in list(failures.values())[-MOST_TOLD:]) or self._why
        stages = sorted({stage for each in failures.values() for stage in (each.stage, *each.near)})
        where = f" for stage {' or '.join(map(str, stages))}" if stages else ""
        return (
            f"step {step} has failed {self._times(cast)} times with the peers that are here. It is not skipped. "
            f"{told}. It is tried again later and later, and at once with others: another peer{where} may help, or "
            "`swarm-peer control` to expel one"
        )

    def _times(self, cast: Iterable[Actor]) -> int:
        most = max(self._failed_with.values(), default=0) if len(self._failed_with) >= MOST_CASTS else 0
        return self._failed_with.get(_peers(cast), most)

    def decided(self) -> None:
        self.aborts = self.nonfinite = 0
        self.doubts.forget()
        self._failed_with.clear()
        self._why = ""

    def settle(self, workers: Iterable[Actor], pass_id: PassId) -> None:
        """A step is decided, by the work of these: who is at fault for what failed in it goes on probation."""
        guilty = self.accusations.settle((actor.peer for actor in workers), self.halves.left_out)
        self.halves.clear()
        for peer in guilty:
            self.probation.strike(peer, pass_id)

    # ------------------------------------------------------------ forward-only passes

    @property
    def _evaluation(self) -> PassId:
        """The evaluation that is on, with the sample after it, as a pass of a step of its own."""
        return PassId(Term(0), StepNumber(self._evaluations))

    def next_evaluation(self) -> None:
        """Of another version than the one before."""
        self._evaluations += 1

    def idled(self, peer: str) -> None:
        """It held up a forward-only pass: it is left out of this evaluation and of the next, then of more each time.

        Steps are another matter: who does its part in them has it.
        """
        self._idlers.strike(peer, self._evaluation, 2)

    def idle_strikes(self, peer: str) -> int:
        return self._idlers.strikes(peer)

    def is_idle(self, peer: str) -> bool:
        """It is to be given nothing in this evaluation, if its stage has others."""
        return self._idlers.is_benched(peer, self._evaluations)

    def did_its_part(self, peers: Collection[str]) -> None:
        """They did what they were given in a forward-only pass that has its result."""
        for peer in peers:
            self._idlers.worked(peer, self._evaluation)


def _peers(actors: Iterable[Actor]) -> Cast:
    return frozenset(actor.peer for actor in actors)
