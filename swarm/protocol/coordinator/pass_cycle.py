"""The cycle of passes: a term begins, passes open one after another, and their outcomes are settled.

`interval` waits between passes until every stage is held and chooses what comes next. An `open_pass` runs by itself
until it has an outcome, and `outcomes` says what follows from it.
"""

from __future__ import annotations

from swarm.events import RunFinished, RunPaused, StepAborted
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.coordinator.announced_state import in_pass
from swarm.protocol.coordinator.audit.audits import Audits
from swarm.protocol.coordinator.audit.culprit_search import Accused
from swarm.protocol.coordinator.checkpoints import Checkpoints
from swarm.protocol.coordinator.codec_choice.choice import CodecChoice
from swarm.protocol.coordinator.commands import Commands
from swarm.protocol.coordinator.divergence import Divergence
from swarm.protocol.coordinator.ending import Ending
from swarm.protocol.coordinator.interval import Finished, Interval, Ready
from swarm.protocol.coordinator.io import WriteRecord
from swarm.protocol.coordinator.listeners import Listeners
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.outcomes import Again, Close, Commit, Outcomes
from swarm.protocol.coordinator.passes.costs_report import CostsReport
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.passes.outcome import Decided
from swarm.protocol.coordinator.passes.partitions import Partitions
from swarm.protocol.coordinator.passes.progress_report import ProgressReport
from swarm.protocol.coordinator.passes.roster_weights import RosterWeights
from swarm.protocol.coordinator.passes.step_report import StepReport
from swarm.protocol.coordinator.passes.tables_report import TablesReport
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.coordinator.placement.placement import Placement
from swarm.protocol.coordinator.placement.survey import NewTerm, Survey
from swarm.protocol.coordinator.scheduler import Scheduler
from swarm.protocol.coordinator.step_entry import StepEntry
from swarm.protocol.coordinator.terms import Terms
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.messages import Decide, Decision, Halt
from swarm.protocol.outbox import Outbox
from swarm.protocol.residuals import Rosters
from swarm.protocol.settings import Settings


class PassCycle:
    """Owns the phase and the open pass. Inputs from the disk are `term_written` and `record_written`.

    Call `between` and `listen` when something may have changed, `settle` whenever the open pass may have an outcome,
    and `tick` once a heartbeat.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        failure_history: FailureHistory,
        stage_costs: StageCosts,
        placement: Placement,
        listeners: Listeners,
        divergence: Divergence,
        ladders: CodecLadders | None,
        out: Outbox,
    ) -> None:
        self.phase = Phase.STARTING
        self.open_pass: OpenPass | None = None
        """The open pass. It is set only in the phases OPEN and DECIDING."""
        self._settings = settings
        self._history = history
        self._members = members
        self._failure_history = failure_history
        self._placement = placement
        self._listeners = listeners
        self._divergence = divergence
        self._out = out
        self._halts = ""
        """The reason for which all peers are told to stop once the new term is durable. Empty: they are not."""
        self._rosters = Rosters()
        choice = CodecChoice(ladders, settings.stages, history.decision, members, out)
        weights = RosterWeights(stage_costs, members, out)
        self._audits = Audits(settings, members)
        self._scheduler = Scheduler(
            settings, history, members, failure_history, self._rosters, choice, weights, self._audits
        )
        self._step_entry = StepEntry(
            history, members, failure_history, self._audits, self._scheduler, placement.rebalancing
        )
        self._partitions = Partitions(history, failure_history, out)
        self._tables_told = TablesReport(members, stage_costs, out)
        self._progress_told = ProgressReport(out)
        self._step_told = StepReport(settings, members, out)
        self.costs = CostsReport(settings, out)
        self.checkpoints = Checkpoints(
            settings, history, members, failure_history.doubts, failure_history.kept_back, out
        )
        self._terms = Terms(history, members, out)
        self._interval = Interval(
            settings, history, members, failure_history, self._scheduler, placement, self.checkpoints, out
        )
        self._outcomes = Outcomes(
            settings, history, members, failure_history, self._scheduler, self._audits, divergence, self.costs, out
        )
        self._ending = Ending(settings, members, out)

    @property
    def started(self) -> bool:
        """True once the first term of this process has begun."""
        return self._terms.started

    @property
    def goes_back(self) -> bool:
        """True while a term is being written with which the run goes back to an earlier version."""
        return self._terms.goes_back

    @property
    def decided(self) -> int:
        """The last decided step that was not rolled back; −1: none, or it is not known yet."""
        return self._terms.decided

    @property
    def trains(self) -> bool:
        """True if a training step is in progress."""
        return self.open_pass is not None and self.open_pass.pass_state.kind is PassKind.TRAIN

    def in_words(self) -> tuple[str, str]:
        """The state and the reason for it, as in StateChanged."""
        if self.phase is Phase.FINISHED:
            return self._ending.in_words()
        if not self.started:
            return "starting", "the coordinator reads the decision record"
        if self.open_pass is not None:
            return in_pass(self.open_pass, self._history)
        if self.phase is Phase.STARTING:
            return "waiting", f"a new term begins: {self._terms.why}"
        return self._interval.in_words()

    # ------------------------------------------------------------ terms and records

    def start(self) -> None:
        """Request the first term, unless this was done."""
        if self.phase is Phase.STARTING and not self._terms.is_requested:
            self._new_term(NewTerm())

    def _new_term(self, wanted: NewTerm, why: str = "") -> None:
        """Request a new term. Nothing is sent under a term before the term is durable."""
        self.phase = Phase.STARTING
        self.open_pass = None
        self._terms.request(wanted, why)

    def term_written(self, term: int, now: float) -> bool:
        """A term is on disk. Return True if the run has gone back to an earlier version with it."""
        begun = self._terms.written(term)
        if begun is None:
            return False
        if begun.rollback_to is not None:
            self._roll_back(begun.rollback_to)
        self._scheduler.new_term()
        self._terms.begin()
        self._close(now)
        if self._halts:
            self._out.emit(RunPaused(self._halts))
            self.end(Halt(self._halts, self._history.term), now)
        return begun.rollback_to is not None

    def _roll_back(self, version: int) -> None:
        """The history continues from `version` in the term that begins."""
        self.costs.rolled_back(self._history.version - version, f"rolled back to version {version}")
        self._history.rolled_back(version)
        self.checkpoints.rolled_back(version)
        self._audits.forget()
        self._failure_history.audited_by = 0
        self._divergence.rolled_back()

    def record_written(self, decision: Decision, now: float) -> None:
        """The step is decided."""
        if self.phase is not Phase.DECIDING or self.open_pass is None or decision.step != self._history.version:
            return
        decided, pass_state = self.open_pass.outcome, self.open_pass.pass_state
        assert isinstance(decided, Decided)
        without = decided.without
        self._history.decided(decision)
        self.checkpoints.decided(self._history.version, pass_state, without, self._audits.took_part, now=now)
        self._rosters.decided(decision, pass_state.tables, without)
        self._failure_history.decided()
        self._divergence.decided()
        there = [actor for actor in pass_state.actors if actor not in without]
        workers = [actor for actor in there if pass_state.has_work(actor)]
        self.open_pass.held_up(now, self._failure_history.settle(workers, pass_state.pass_id))
        sealed = pass_state.reductions.last_sealed_at
        self._placement.rebalancing.decided(now - pass_state.opened_at, None if sealed is None else now - sealed)
        self._placement.decided([listener.actor for listener in pass_state.listeners])
        for actor in there:
            if (member := self._members.get(actor)) is not None:
                member.worked(self._history.version)
                member.has_counted = member.shown = True
                if pass_state.has_work(actor):
                    self._failure_history.probation.worked(actor.peer, pass_state.pass_id)
        self._step_told.tell(pass_state, decided, now)
        self.costs.decided(pass_state, without, now)
        self._close(now)

    # ------------------------------------------------------------ from pass to pass

    def look_at_once(self, now: float) -> None:
        """Something has changed that the next pass may depend on."""
        self._interval.look_at_once(now)

    def is_due(self, now: float) -> bool:
        """Return True if `between` should be called now."""
        return self.phase is Phase.BETWEEN and self._interval.is_due(now)

    def between(self, commands: Commands, now: float) -> None:
        """Open the pass that is due as soon as every stage is held, and no command is being written."""
        if (doubted := self._divergence.doubted()) is not None:
            self._outcomes.doubt(doubted)
            self._new_term(NewTerm(), doubted.reason)
            return
        if not commands.busy and (back := self._divergence.look()) is not None:
            self._halts = back.halt
            self._new_term(self._placement.go_back(back.version, back.reason))
            return
        match self._interval.next(commands.busy, now):
            case NewTerm() as wanted:
                self._new_term(wanted)
            case Ready(kind, survey):
                self._open(kind, survey, now)
            case Finished():
                self._finish(now)
            case None:
                pass

    def _open(self, kind: PassKind, survey: Survey, now: float) -> None:
        rosters, promotion = survey.rosters, survey.promotion
        if self._audits.comparing:
            rosters, promotion = [[a for a in roster if a not in promotion] for roster in rosters], set()
        pass_state = self._scheduler.pass_state(kind, rosters, now, promotion, self._placement.rebalancing.step_s)
        pass_state.listen(self._listeners.of(pass_state.pass_id, [table.roster for table in pass_state.tables], now))
        self.phase = Phase.OPEN
        self._placement.pass_opened(pass_state.actors, now)
        self.costs.opened(kind, now)
        if kind is PassKind.TRAIN:
            self._failure_history.opened(survey.actors)
        told = kind is not PassKind.GENERATE or not self._scheduler.samples
        self.open_pass = OpenPass(
            pass_state,
            self._members,
            self._settings,
            self._failure_history,
            self._tables_told,
            self._out,
            now,
            told=told,
        )

    def listen(self, now: float) -> None:
        """While a pass is open, add listeners that have no part in it, and repeat the decisions that listeners lack."""
        if self.phase is not Phase.OPEN or self.open_pass is None or self.open_pass.outcome is not None:
            return
        pass_state = self.open_pass.pass_state
        rosters = [table.roster for table in pass_state.tables]
        self.open_pass.listen(self._listeners.of(pass_state.pass_id, rosters, now, self.open_pass.closed), now)
        self._listeners.repeat_decisions(pass_state)

    def let_in(self, member: Member, now: float) -> None:
        """Let a member that has caught up with the open step take part in it."""
        if self.open_pass is not None:
            self._step_entry.attempt(member, self.open_pass, now)

    def unreachable(self, one: Actor, other: Actor) -> None:
        """Two actors cannot connect to each other."""
        if self.open_pass is not None and self.open_pass.includes(one, other):
            self._partitions.unreachable(one, other, self.open_pass.pass_state)

    def settle(self, now: float) -> tuple[Accused, ...]:
        """Act on the outcome of the open pass. Do nothing if it has no outcome yet. Return the peers to expel from the
        run.
        """
        if self.phase is not Phase.OPEN or self.open_pass is None:
            return ()
        pass_id = self.open_pass.pass_state.pass_id
        match self._outcomes.sequel(self.open_pass, now):
            case Commit(decision, expelled):
                self.phase = Phase.DECIDING
                self._out.add(WriteRecord(decision))
                return expelled
            case Close():
                self._close(now)
            case Again(reason, expelled):
                if isinstance(self.open_pass.outcome, Decided):  # the step is audited: delays count in each attempt
                    self.open_pass.held_up(now)
                self._out.emit(StepAborted(str(pass_id), self._members.next_term(self._history.term), reason))
                self._new_term(NewTerm(), reason)
                return expelled
            case None:
                pass
        return ()

    def _close(self, now: float) -> None:
        self.phase = Phase.BETWEEN
        self.open_pass = None
        self._interval.begin(now)
        self._placement.pass_closed(now)

    # ------------------------------------------------------------ time

    def tick(self, failure_detector: FailureDetector, now: float) -> bool:
        """Call it once a heartbeat. If it returns True, a pass is open: then call `settle`, `listen` and
        `tell_progress`.
        """
        if self.phase is Phase.FINISHED:
            self._ending.tick(now)
        if self.phase is not Phase.OPEN or self.open_pass is None:
            return False
        self.open_pass.tick(failure_detector, now)
        return True

    def tell_progress(self) -> None:
        """Report the progress of the step, unless it is over."""
        if self.open_pass is not None and self.trains:
            self._progress_told.tell(self.open_pass.pass_state, len(self._members))

    # ------------------------------------------------------------ the end of the run

    def _finish(self, now: float) -> None:
        self._out.emit(RunFinished(self._history.version - 1, "all steps are decided, applied and archived"))
        decision = self._history.decision
        self.end(None if decision is None else Decide(decision, self._history.term, finished=True), now)

    def end(self, last_word: Decide | Halt | None, now: float) -> None:
        """End the run. From now on, the coordinator only sends all peers home."""
        self.phase = Phase.FINISHED
        self.open_pass = None
        self._ending.begin(last_word, now)
