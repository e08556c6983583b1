"""What earlier passes have shown for the next one: which pairs of peers cannot connect, and which peers failed in the
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from swarm.protocol.coordinator.membership.accusations import Accusations
from swarm.protocol.coordinator.membership.delays import Delays
from swarm.protocol.coordinator.membership.doubts import Doubts
from swarm.protocol.coordinator.membership.halves import Halves
from swarm.protocol.coordinator.membership.idle import Idle
from swarm.protocol.coordinator.membership.kept_back import KeptBack
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.ids import Actor, Pair, PassId, StepNumber, Term

BLOCKED_STEPS = 10
"""For this number of steps, two peers that could not connect do not get the same microbatch in adjacent stages."""
MOST_REST_S = 600.0
"""Longest pause in seconds between two attempts at a step by the same peers."""
MOST_CASTS = 64
"""Number of different sets of peers that may each try a step without a pause."""

MOST_TOLD = 4
"""Maximum number of failures that are named in the reason for a pause."""

Cast = frozenset[str]
"""The ids of the peers that compute a step together."""


class FailureHistory:
    """What is remembered of failures. `aborts`, `nonfinite` and the failures are cleared when the step is decided; the
    rest is kept.
    """

    def __init__(self, people: People) -> None:
        self.aborts = 0
        """Number of passes aborted since the last decision."""
        self.audited_by = 0
        """Least number of people that each stage needs because this step is computed twice for comparison. 0: it is
        not. A stage with fewer gets peers on probation back.
        """
        self.nonfinite = 0
        """1 if an attempt at this step was not finite. The next attempt may then skip the step."""
        self.probation = Probation(people)
        self.delays = Delays(self.probation, people)
        self.accusations = Accusations(people)
        self.halves = Halves(people)
        self.doubts = Doubts()
        self.idle = Idle()
        self.kept_back = KeptBack()
        self._cast: Cast = frozenset()
        """The peers of the newest attempt at the step."""
        self._failed_with: Counter[Cast] = Counter()
        """For each set of peers, the number of attempts at this step that were aborted because a peer failed."""
        self._failed_at = 0.0
        """Time of the last of these attempts."""
        self._why = ""
        """The reason why the last of these attempts was aborted."""
        self._idlers = Probation(people)
        """Probation of the peers that delayed a forward-only pass. Here, one evaluation counts as one step."""
        self._evaluations = 0
        self._blocked: dict[Pair, int] = {}

    def unreachable(self, one: Actor, other: Actor, version: int) -> None:
        self._blocked = {pair: until for pair, until in self._blocked.items() if until > version}
        self._blocked[Pair((one, other))] = version + BLOCKED_STEPS

    def blocked(self, version: int) -> frozenset[Pair]:
        """Pairs that should not be neighbours in the pass after `version` steps."""
        return frozenset(pair for pair, until in self._blocked.items() if until > version)

    # ------------------------------------------------------------ a step that fails

    def not_finite(self) -> None:
        """The result of the step was not finite. If that of the next attempt is not finite either, the step is skipped.

        Accusations about non-finite results are withdrawn.
        """
        self.nonfinite = 1
        self.accusations.nobodys_fault()

    def not_believed(self) -> None:
        """Only one stage or one person reports that this step is not finite. Try the step again as if it were new."""
        self.nonfinite = 0
        self.halves.clear()
        self.doubts.forget()

    def leaves_half_out(self, rosters: Sequence[Sequence[Actor]], step: int) -> bool:
        """Return True if the step, which was not finite with `rosters`, should be done again without half of the peers.

        False if a microbatch was not finite with every peer that could compute or send it, because then the cause is
        known.
        """
        halves = self.halves
        if halves.begun:
            return halves.next()
        return self.nonfinite == 0 and halves.split(rosters, step)

    @property
    def turns(self) -> int:
        """The number of places by which the assignment of the next attempt is rotated relative to the first attempt."""
        return self.nonfinite + sum(self._failed_with.values())

    def opened(self, cast: Iterable[Actor]) -> None:
        """An attempt at a step begins. `cast`: the actors that may take part."""
        self._cast = _peers(cast)

    def attempt_failed(self, why: str, now: float) -> None:
        """An attempt was aborted because a peer failed: the step must be run again."""
        if self._cast in self._failed_with or len(self._failed_with) < MOST_CASTS:
            self._failed_with[self._cast] += 1
        self._failed_at, self._why = now, why

    def rest_until(self, cast: Iterable[Actor], heartbeat_s: float) -> float:
        """The earliest time of the next attempt by `cast`. New peers may try at once; the same peers wait longer each
        time.
        """
        times = self._times(cast)
        return self._failed_at + min(MOST_REST_S, heartbeat_s * (2.0 ** min(max(0, times - 1), 30) - 1))

    def why_rests(self, cast: Iterable[Actor], step: int) -> str:
        """The reason for the pause, as text. It says which peers failed, which other peers were involved, and what the
        organiser can do.
        """
        failures = {(each.stage, each.who, each.senders): each for each in self.accusations.failures}
        told = "; ".join(str(each) for each in list(failures.values())[-MOST_TOLD:]) or self._why
        stages = sorted({stage for each in failures.values() for stage in (each.stage, *each.near)})
        where = f" for stage {' or '.join(map(str, stages))}" if stages else ""
        return (
            f"step {step} has failed {self._times(cast)} times with the present peers. It is not skipped. "
            f"{told}. The same peers try again after longer and longer pauses. Other peers would try at once: "
            f"add a peer{where}, or expel one with `swarm-peer control`"
        )

    def _times(self, cast: Iterable[Actor]) -> int:
        most = max(self._failed_with.values(), default=0) if len(self._failed_with) >= MOST_CASTS else 0
        return self._failed_with.get(_peers(cast), most)

    def decided(self) -> None:
        self.aborts = self.nonfinite = 0
        self.audited_by = 0
        self.doubts.forget()
        self.idle.decided()
        self._failed_with.clear()
        self._why = ""

    def settle(self, workers: Iterable[Actor], pass_id: PassId) -> list[str]:
        """A step is decided by the work of `workers`. The peers that caused its failures go on probation. Return their
        ids.
        """
        worked = [actor.peer for actor in workers]
        guilty = self.accusations.settle(worked, self.halves.left_out)
        self.halves.clear()
        for peer in worked:
            self.idle.worked(peer)
        for peer in guilty:
            self.probation.strike(peer, pass_id)
        return guilty

    # ------------------------------------------------------------ forward-only passes

    @property
    def _evaluation(self) -> PassId:
        """The current evaluation, including the sample after it, represented as a step with one pass."""
        return PassId(Term(0), StepNumber(self._evaluations))

    def next_evaluation(self) -> None:
        """An evaluation of another version begins."""
        self._evaluations += 1

    def idled(self, peer: str) -> None:
        """A peer delayed a forward-only pass. Leave it out of this evaluation and the next one; longer each further
        time.

        Training is not affected: a peer that does its work there keeps its share.
        """
        self._idlers.strike(peer, self._evaluation, 2)

    def idle_strikes(self, peer: str) -> int:
        return self._idlers.strikes(peer)

    def is_idle(self, peer: str) -> bool:
        """Return True if the peer gets no work in this evaluation, provided that its stage has other peers."""
        return self._idlers.is_benched(peer, self._evaluations)

    def did_its_part(self, peers: Collection[str]) -> None:
        """These peers did their work in a completed forward-only pass."""
        for peer in peers:
            self._idlers.worked(peer, self._evaluation)


def _peers(actors: Iterable[Actor]) -> Cast:
    return frozenset(actor.peer for actor in actors)
