"""How a peer catches up with steps that were decided without it: it applies the sums of the replicas that took part.

A newcomer loads a version while the others train, and listens. It receives every decision, fetches its stage's sums,
and keeps them until its own version has reached their step. Then it applies the sums in order. It applies sums only if
their digest is the decided one. A peer fetches only sums of decided steps, so an aborted step leaves nothing here. No
peer waits for a listener. A fenced peer catches up in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import CatchUpFailed, FrameRefused
from swarm.protocol.ids import Actor, Attempt, PassId, StageIndex, Term
from swarm.protocol.messages import Decision, Open
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import Apply, Assembled, ComputeFailed, FetchSums, RestoreSums, SumsFetched, SumsMissing
from swarm.protocol.settings import Settings

SPOOLED = 64
"""Number of steps whose sums are fetched ahead. This bounds what a donor keeps and what this peer keeps."""
MAX_TRIES = 3
"""Number of times that fetched sums of a step may differ from the decided digest."""


@dataclass(slots=True)
class _Step:
    decision: Decision
    fetched: bool = False
    tries: int = 0


class CatchUp:
    """The steps that one peer must catch up with. Call `advance` after every input and carry out the action that it
    returns.
    """

    def __init__(self, me: Actor, settings: Settings, held_stage: HeldStage, out: Outbox) -> None:
        self.heard: PassId | None = None
        """The newest pass that named this peer as a listener."""
        self._me = me
        self._settings = settings
        self._held_stage = held_stage
        self._out = out
        self._steps: dict[int, _Step] = {}
        self._donors: tuple[Actor, ...] = ()
        self._fetching: int | None = None
        self._restoring: Attempt | None = None
        self._rolled_back_in = Term(0)

    @property
    def lacks(self) -> int | None:
        """The first step after the version that is loading or held whose decision this peer lacks."""
        step = self._base
        while step is not None and step in self._steps:
            step += 1
        return step

    @property
    def behind(self) -> bool:
        """True if a decided step is not applied here yet."""
        return self._base in self._steps

    @property
    def _base(self) -> int | None:
        return self._held_stage.version if self._held_stage.loading is None else self._held_stage.loading

    # ------------------------------------------------------------ passes and decisions heard

    def told(self, opening: Open) -> None:
        """A pass has opened, with this peer as a listener or in a roster. Every member of the roster holds the pass's
        version.
        """
        stage = self._held_stage.stage
        assert stage is not None
        self._rolled_back_in = max(self._rolled_back_in, opening.rolled_back_in)
        donors = tuple(actor for actor in opening.tables[stage].roster if actor != self._me)
        if donors != self._donors:
            self._donors = donors
            if self._fetching is not None:
                self._fetch(self._fetching)
        if opening.decision is not None:
            self.decided(opening.decision)

    def decided(self, decision: Decision) -> None:
        """Record a decision of this state's history, if this peer has not applied the step yet."""
        base, step = self._base, decision.step
        if base is None or not base <= step < base + self._settings.steps:
            return
        if len(decision.outcomes) != self._settings.stages:
            return
        if not self._rolled_back_in <= decision.term <= self._held_stage.state_term:
            return
        known = self._steps.get(step)
        if known is None or known.decision.term < decision.term:
            self._steps[step] = _Step(decision)

    # ------------------------------------------------------------ fetching, restoring, applying

    def advance(self) -> RestoreSums | None:
        """Start to fetch the next missing sums, or return the order to restore the next step's sums if they are
        here.
        """
        base = self._base
        if base is None:
            return None
        if self._fetching is None and self._donors:
            ahead = range(base, base + SPOOLED)
            step = next((s for s in ahead if s not in self._steps or not self._steps[s].fetched), None)
            if step is not None and step in self._steps:
                self._fetch(step)
        due = self._steps.get(base)
        if due is None or not due.fetched or self._restoring is not None or self._held_stage.loading is not None:
            return None
        self._restoring = self._attempt(due.decision)
        return RestoreSums(self._restoring, is_whole(due.decision, self._restoring.stage))

    def fetched(self, event: SumsFetched) -> None:
        if event.step == self._fetching and event.stage == self._held_stage.stage:
            self._fetching = None
            self._steps[event.step].fetched = True

    def missing(self, event: SumsMissing) -> bool:
        """The sums of a step could not be fetched. Return True if this peer cannot catch up any more because it needs
        them.
        """
        if event.step != self._fetching or event.stage != self._held_stage.stage:
            return False
        self._give_up(event.step, event.reason)
        return True

    def restored(self, event: Assembled) -> Apply | None:
        """The sums of a step are in the separate buffer. Return the order to apply them if their digest is the decided
        one.
        """
        if event.attempt != self._restoring:
            return None
        self._restoring = None
        due = self._steps.get(event.attempt.pass_id.step)
        if due is None or self._attempt(due.decision) != event.attempt:
            return None
        decided = due.decision.outcomes[event.attempt.stage].digest
        if event.digest == decided:
            return Apply(due.decision, event.attempt)
        self._refuse(due, f"have the digest {event.digest[:16]}; the decided digest is {decided[:16]}")
        return None

    def failed(self, event: ComputeFailed) -> None:
        """Computing failed. If the fetched sums could not be read, count this as an attempt with wrong sums."""
        restoring, self._restoring = self._restoring, None
        if restoring is None or restoring.pass_id != event.pass_id:
            self._restoring = restoring
        elif (due := self._steps.get(restoring.pass_id.step)) is not None:
            self._refuse(due, event.reason)

    def _refuse(self, due: _Step, reason: str) -> None:
        due.fetched = False
        due.tries += 1
        self._out.emit(FrameRefused("its donors", f"the sums of step {due.decision.step} {reason}", due.tries))

    def spoilt(self) -> str:
        """The reason why this peer gives up: the sums of the next step were wrong `MAX_TRIES` times. Otherwise
        empty.
        """
        due = self._steps.get(self._base) if self._base is not None else None
        if due is None or due.tries < MAX_TRIES:
            return ""
        reason = "its sums differed from the decided digest three times"
        self._give_up(due.decision.step, reason)
        return reason

    def applied(self, step: int) -> None:
        """The peer holds the version after `step`: forget `step` and all earlier ones."""
        self._steps = {known: each for known, each in self._steps.items() if known > step}
        self._restoring = None
        if self._fetching is not None and self._fetching <= step:
            self._fetching = None

    def clear(self) -> None:
        """Another state is loaded: forget all steps."""
        self._steps.clear()
        self._fetching = self._restoring = None

    def _give_up(self, step: int, reason: str) -> None:
        self._out.emit(CatchUpFailed(self._held_stage.stage, step, reason))
        self.clear()

    def _fetch(self, step: int) -> None:
        stage = self._held_stage.stage
        assert stage is not None
        self._fetching = step
        decision = self._steps[step].decision
        self._out.add(FetchSums(stage, decision.step, decision.outcomes[stage].digest, self._donors))

    def _attempt(self, decision: Decision) -> Attempt:
        """The attempt whose result was decided."""
        stage = self._held_stage.stage
        assert stage is not None
        partner: StageIndex | None = self._settings.partner(stage)
        number = -1 if partner is None else decision.outcomes[partner].number
        return Attempt(PassId(decision.term, decision.step), stage, decision.outcomes[stage].number, number)


def is_whole(decision: Decision, stage: int) -> bool:
    """Return True if a stage's sums are uncompressed in a run that compresses, because a single replica computed the
    step.
    """
    return len(decision.outcomes[stage].contributions) == 1
