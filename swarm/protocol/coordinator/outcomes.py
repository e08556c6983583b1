"""What follows from the outcome of a pass: a decision to record, the next pass, or the same step again."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import (
    Evaluated,
    EvaluationDropped,
    PeerIdle,
    StageDoubted,
    StateDrifted,
    StepAudited,
    SumsMisreported,
)
from swarm.events.wording import worth_telling
from swarm.protocol.coordinator.audit.audits import Audits
from swarm.protocol.coordinator.audit.culprit_search import Accused
from swarm.protocol.coordinator.audit.misreports import Misreports
from swarm.protocol.coordinator.divergence import Divergence
from swarm.protocol.coordinator.io import PassClosed
from swarm.protocol.coordinator.membership.doubts import Doubted
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.costs_report import CostsReport
from swarm.protocol.coordinator.passes.drift import Drift
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.passes.outcome import Completed, Decided, Drifted, Dropped, GiveUp, Spoilt
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.scheduler import Scheduler
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.messages import Decision
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


@dataclass(frozen=True, slots=True)
class Commit:
    """Write this decision. `expelled`: peers to expel from the run."""

    decision: Decision
    expelled: tuple[Accused, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """The pass is over. Another one follows in the same term."""


@dataclass(frozen=True, slots=True)
class Again:
    """Begin a new term, in which the pass is run again. `expelled`: peers to expel from the run first."""

    reason: str
    expelled: tuple[Accused, ...] = ()


Sequel = Commit | Close | Again


class Outcomes:
    """`sequel` draws the conclusions from the outcome of a pass."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        failure_history: FailureHistory,
        scheduler: Scheduler,
        audits: Audits,
        divergence: Divergence,
        costs: CostsReport,
        out: Outbox,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._failure_history = failure_history
        self._scheduler = scheduler
        self._audits = audits
        self._divergence = divergence
        self._costs = costs
        self._out = out
        self._misreports = Misreports()

    def sequel(self, open_pass: OpenPass, now: float) -> Sequel | None:
        """What follows from the outcome of the open pass; None if it has no outcome yet. Call it once for an
        outcome.
        """
        pass_state = open_pass.pass_state
        match open_pass.outcome:
            case Decided(decision, without):
                return self._record_or_audit(pass_state, decision, without, now)
            case Completed(loss_sum, token):
                return self._complete(pass_state, loss_sum, token, now)
            case GiveUp(reason, idle):
                for actor, why in idle:
                    self._note_idle(pass_state, actor, why, now)
                return self._give_up(pass_state, reason, now)
            case Drifted(drifts):
                return self._reload(pass_state, drifts)
            case Doubted() as doubted:
                self.doubt(doubted)
                return self._redo(pass_state, doubted.reason)
            case Spoilt(what):
                self._divergence.spoilt(what)
                return self._redo(pass_state, what)
            case Dropped(reason, who):
                self._scheduler.dropped()
                self._costs.aborted(pass_state, reason)
                self._drop(pass_state, reason, who, now)
                return Close()
            case None:
                return None

    def doubt(self, doubted: Doubted) -> None:
        """The statements of one stage about itself are in doubt: its peers load their state again, or other peers
        replace them.

        A new term must follow, because it voids what these peers received under an older one.
        """
        reload = self._failure_history.doubts.doubt(doubted)
        left_out = [str(actor) for actor in doubted.who if actor not in reload]
        if left_out:
            self._divergence.suspect(doubted.reason)
        version, names = self._history.version, [str(actor) for actor in reload]
        self._out.emit(StageDoubted(version, doubted.stage, names, left_out, doubted.reason))
        self._failure_history.not_believed()
        for actor in doubted.who:
            if (member := self._members.get(actor)) is not None:
                member.drifted(self._members.next_term(self._history.term))

    # ------------------------------------------------------------ forward-only passes

    def _complete(self, pass_state: PassState, loss_sum: float, token: int, now: float) -> Close:
        self._out.add(PassClosed(pass_state.pass_id, pass_state.kind, loss_sum, token))
        self._scheduler.completed(pass_state.kind)
        self._failure_history.did_its_part([a.peer for a in pass_state.actors if pass_state.has_work(a)])
        if pass_state.kind is PassKind.EVALUATE:
            targets = self._settings.targets_per_step // self._settings.microbatches
            targets *= self._settings.evaluate_microbatches
            self._out.emit(Evaluated(self._history.version, loss_sum / targets, targets))
            self._costs.decided(pass_state, frozenset(), now)
        return Close()

    def _drop(self, pass_state: PassState, reason: str, who: tuple[Actor, ...], now: float) -> None:
        """An evaluation or a sample is not tried again, because the actors `who` did not do their work."""
        self._out.emit(EvaluationDropped(self._history.version, reason, [str(actor) for actor in who]))
        self._costs.given_up(pass_state, now)

    # ------------------------------------------------------------ passes that failed

    def _give_up(self, pass_state: PassState, reason: str, now: float) -> Again:
        self._failure_history.aborts += 1
        dropped = self._scheduler.aborted(pass_state.kind)
        self._costs.aborted(pass_state, reason)
        if dropped:
            self._drop(pass_state, reason, (), now)
        self._audits.gave_up(pass_state)
        return Again(reason)

    def _note_idle(self, pass_state: PassState, actor: Actor, why: str, now: float) -> None:
        """It gets no strike: if it only waits for its neighbours, one of these may be at fault. But it gets one if an
        audit has tried it alone: it could escape each audit, and have the step repeated each time.
        """
        stage = pass_state.stage_of(actor)
        assert stage is not None
        if self._audits.comparing and len(self._members.of_stage(stage)) > 1:
            self._failure_history.probation.strike(actor.peer, pass_state.pass_id)
        times = self._failure_history.idle.add(actor.peer, why, self._settings.step_budget_s, now)
        if worth_telling(times):
            self._out.emit(PeerIdle(str(actor), stage, str(pass_state.pass_id), why, times))

    def _reload(self, pass_state: PassState, drifts: tuple[Drift, ...]) -> Again:
        """Repeat the step. The peers whose state differs from that of their siblings must load it again first."""
        pass_id, term = pass_state.pass_id, self._members.next_term(self._history.term)
        for drift in drifts:
            believed, reload = ([str(actor) for actor in group] for group in (drift.believed, drift.reload))
            self._out.emit(StateDrifted(pass_id.step, drift.stage, believed, reload, drift.reason))
            for actor in drift.reload:
                self._failure_history.probation.strike(actor.peer, pass_id)
                if (member := self._members.get(actor)) is not None:
                    member.drifted(term)
        return self._redo(pass_state, "replicas computed it with different states")

    def _redo(self, pass_state: PassState, reason: str) -> Again:
        """Repeat a step that failed, without blaming any peer of it."""
        self._scheduler.aborted(pass_state.kind)
        self._audits.gave_up(pass_state)
        return Again(reason)

    # ------------------------------------------------------------ steps that can be decided

    def _record_or_audit(
        self, pass_state: PassState, decision: Decision, without: frozenset[Actor], now: float
    ) -> Sequel:
        expelled = self._misreported(pass_state, without)
        ruling = self._audits.judge(pass_state, decision, without)
        if ruling.agreed is not None:
            self._out.emit(StepAudited(decision.step, ruling.agreed))
        for actor in ruling.refused:
            self._failure_history.probation.strike(actor.peer, pass_state.pass_id)
        if ruling.again:
            self._costs.audited(pass_state)
            self._failure_history.audited_by = 0 if ruling.refused else self._audits.people_needed
            if self._audits.searching:
                self._failure_history.not_finite()  # the search expects such failures: do not delay the next try
            both = {each.actor: each for each in (*expelled, *ruling.expelled)}
            return Again(ruling.again, tuple(both.values()))
        match self._divergence.objection(pass_state, without) if decision.skip else None:
            case None:
                return Commit(decision, expelled)
            case Doubted() as doubted:
                self.doubt(doubted)
                return self._redo(pass_state, doubted.reason)
            case GiveUp(reason):
                self._failure_history.not_believed()
                self._failure_history.attempt_failed(reason, now)
                return self._give_up(pass_state, reason, now)

    def _misreported(self, pass_state: PassState, without: frozenset[Actor]) -> tuple[Accused, ...]:
        """Give a strike to each replica whose report about its stage's sums is wrong. Return those to expel."""
        expelled = []
        for found in pass_state.preparation.contradicted(without):
            self._failure_history.probation.strike(found.actor.peer, pass_state.pass_id)
            self._out.emit(SumsMisreported(str(found.actor), found.stage, str(pass_state.pass_id), found.reason))
            if (accused := self._misreports.add(found)) is not None and self._settings.audit_every:
                expelled.append(accused)
        return tuple(expelled)
