"""The coordinator's core: it receives messages from peers, keeps the history of terms and decisions, and opens one
pass after another.

It holds no parameters. A step is committed when its decision record is durable; only then are the peers told. The
coordinator never asks peers for outcomes. Between passes, `placement` makes sure that every stage is held, and
`scheduler` chooses the next pass. An `open_pass` runs by itself until it has an outcome.
"""

from __future__ import annotations

import enum
from typing import cast

from swarm.events import (
    CoordinatorStarted,
    Evaluated,
    EvaluationDropped,
    FaultCosted,
    PeerExpelled,
    PeerGone,
    PeerJoined,
    PeerLost,
    PeerPaused,
    PeerResumed,
    PeerSeen,
    RunFinished,
    RunPaused,
    StageDoubted,
    StateChanged,
    StateDrifted,
    StepAborted,
    StepAudited,
    SwarmSplit,
)
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.controls import Controls, Device
from swarm.protocol.coordinator.audit.audits import Audits
from swarm.protocol.coordinator.checkpoints import Checkpoints
from swarm.protocol.coordinator.codec_choice.choice import CodecChoice
from swarm.protocol.coordinator.commands import AUDIT, MOST_WHY, Commands, shut_out, signed
from swarm.protocol.coordinator.departures import Departures
from swarm.protocol.coordinator.divergence import Divergence
from swarm.protocol.coordinator.io import (
    ArchiveStored,
    CommandWritten,
    ControlRequested,
    CoordinatorAction,
    CoordinatorInput,
    PassClosed,
    Recalled,
    RecordWritten,
    TermWritten,
    Transferring,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator.listeners import Listeners
from swarm.protocol.coordinator.membership.doubts import Doubted
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.reported_work import ReportedWork
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.passes.drift import Drift
from swarm.protocol.coordinator.passes.fault_costs import FaultCosts
from swarm.protocol.coordinator.passes.open_pass import Completed, Decided, Drifted, Dropped, OpenPass, Spoilt
from swarm.protocol.coordinator.passes.partitions import islands
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.progress_report import ProgressReport
from swarm.protocol.coordinator.passes.repair import GiveUp
from swarm.protocol.coordinator.passes.tables_report import TablesReport, weights_of
from swarm.protocol.coordinator.passes.weights import Weights
from swarm.protocol.coordinator.placement.placement import NewTerm, Placement, Survey
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.proofs import Proofs
from swarm.protocol.coordinator.scheduler import Scheduler
from swarm.protocol.ids import Actor, PassKind, Term
from swarm.protocol.io import RUN_FINISHED, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import (
    Command,
    Decide,
    Decision,
    Failed,
    Halt,
    Join,
    Leave,
    Message,
    Prepared,
    Proof,
    Relay,
    Released,
    Result,
    Status,
    Telemetry,
    Unreachable,
    Want,
)
from swarm.protocol.outbox import Outbox
from swarm.protocol.residuals import Rosters
from swarm.protocol.settings import Settings
from swarm.protocol.soundness import Soundness

AT_ONCE = 64
"""Up to this number of members, all members are examined at every message between steps."""
LOOK_S = 1e-4
"""With more members than `AT_ONCE`, the coordinator waits this number of seconds per additional member between two
examinations of all members. An examination takes about a hundredth of that time.
"""
TOLD_AT_ONCE = 16
"""Maximum number of decisions that are repeated to a listener at a heartbeat."""

SENT_AWAY = "it is sent away"
"""The reason for an expulsion by command begins with these words."""


class Phase(enum.Enum):
    STARTING = "starting"
    BETWEEN = "between steps"
    OPEN = "open"
    DECIDING = "deciding"
    FINISHED = "finished"


class CoordinatorCore:
    """One incarnation of the coordinator. The values of `term` and the arguments after it come from its disk, except
    `ladders`.

    `ladders`: given if the run lets the coordinator choose the codecs. `kept`: versions in the archive, in addition to
    `archived`.
    """

    def __init__(
        self,
        actor: Actor,
        settings: Settings,
        term: int,
        last_decision: Decision | None,
        archived: int | None,
        rolled_back_in: int = 0,
        ladders: CodecLadders | None = None,
        controls: Controls | None = None,
        soundness: Soundness | None = None,
        kept: tuple[int, ...] = (),
    ) -> None:
        self.actor = actor
        self.settings = settings
        self.phase = Phase.STARTING
        self.history = History(
            Term(term),
            last_decision,
            archived,
            rolled_back_in,
            controls=controls or Controls(),
            soundness=soundness or Soundness(),
            kept=tuple(sorted(kept)),
        )
        self.members = Members()
        self.members.people.learn(self.history.controls.admitted)
        self.open_pass: OpenPass | None = None
        """The open pass. It is set only in the phases OPEN and DECIDING."""
        self._out = Outbox(actor)
        self._failure_history = FailureHistory(self.members.people)
        self._islands: tuple[tuple[Actor, ...], ...] = ()
        """The groups of peers that cannot reach each other, as found last. A single group: all peers reach each other.
        """
        self._rosters = Rosters()
        choice = CodecChoice(ladders, settings.stages, last_decision, self.members, self._out)
        stage_costs = StageCosts(settings.stages, settings.stage_needs, settings.stage_frames)
        weights = Weights(stage_costs, self.members, self._out)
        self._audits = Audits(settings, self.members)
        self._scheduler = Scheduler(
            settings, self.history, self.members, self._failure_history, self._rosters, choice, weights, self._audits
        )
        self._expelled = {peer: shut_out(command) for peer, command in self.history.controls.banned.items()}
        """For each expelled peer, the reason."""
        doubts = self._failure_history.doubts
        rebalancing = Rebalancing(settings, self.history, self.members, stage_costs, self._out)
        self._seats = Seats(settings, self.history, self.members, stage_costs, doubts, self._out)
        self._placement = Placement(
            actor, settings, self.history, self.members, rebalancing, self._seats, self._failure_history, self._out
        )
        self._listeners = Listeners(settings, self.history, self.members, rebalancing)
        self._checkpoints = Checkpoints(settings, self.history, self.members, doubts, self._out)
        self._failure_detector = FailureDetector(settings)
        self._proofs = Proofs(settings, self.history, self.members, self._failure_history.probation, self._out)
        self._commands = Commands(actor, settings, self.history, self.members, self._out)
        self._departures = Departures(settings, self.history, self.members, self._seats, self._out)
        self._divergence = Divergence(settings, self.history, self.members, doubts, self._commands, self._out)
        self._halts = ""
        """The reason for which all peers are told to stop once the new term is durable. Empty: they are not."""
        self._term_request: WriteTerm | None = None
        self._started = False
        self._paused = ""
        """The last announced reason why the run does not continue."""
        self._waits_for = ""
        """The current reason why the run does not continue."""
        self._next_tick = 0.0
        self._next_look = 0.0
        self._finished_at = 0.0
        self._stopping: tuple[str, float] | None = None
        """(reason, deadline) while this process is stopping: it opens no further pass."""
        self._stopped = False
        self._stop_reason = ""
        self._why_new_term = "all earlier messages are void"
        self._last_word: Decide | Halt | None = None
        """The message that all peers get once the run is over, until they have disconnected."""
        self._tables_told = TablesReport(self.members, stage_costs, self._out)
        self._progress_told = ProgressReport(self._out)
        self._costs = FaultCosts(settings)
        self._costs_of = {
            PassKind.TRAIN: self._costs,
            PassKind.EVALUATE: FaultCosts(settings, lambda: self._costs.usual_s),
        }
        self._reported_work = ReportedWork(actor, settings, self.history, self.members, self._out)
        self._state = ("", "")
        """The state and its reason that were announced last."""

    @property
    def known(self) -> frozenset[Actor]:
        """The peers that have introduced themselves. Other peers may not read the archive."""
        return frozenset(member.actor for member in self.members)

    @property
    def state(self) -> tuple[str, str]:
        """The coordinator's state, as in StateChanged, and the reason for it."""
        return self._state

    @property
    def stages_held(self) -> dict[str, int | None]:
        """The stage of every member. None: the member stands by, or has no place yet."""
        return {str(member.actor): member.stage for member in self.members}

    @property
    def decided(self) -> int:
        """The last decided step that was not rolled back; −1: none. CoordinatorStarted, StepDecided and RolledBack
        report it.
        """
        if not self._started:
            return -1
        request = self._term_request
        version = None if request is None else request.rollback_to
        return (self.history.version if version is None else version) - 1

    @property
    def weights(self) -> list[dict[str, float]]:
        """For each stage, the weight of each peer that serves it in the open pass, as in TableChanged; empty without
        an open pass.
        """
        if self.open_pass is None:
            return []
        pass_state = self.open_pass.pass_state
        return [
            dict(zip(map(str, table.roster), weights_of(pass_state, stage), strict=True))
            for stage, table in enumerate(pass_state.tables)
        ]

    # ------------------------------------------------------------ entry

    def handle(self, event: CoordinatorInput, now: float) -> list[CoordinatorAction]:
        if not self._state[0]:
            self._tell_state()  # first of all, since a new life of the coordinator begins
        self._handle(event, now)
        self._tell_state()
        return cast(list[CoordinatorAction], self._out.take())

    def _handle(self, event: CoordinatorInput, now: float) -> None:
        if self.phase is Phase.STARTING and self._term_request is None:
            self._new_term(NewTerm())
        match event:
            case Received(sender, message):
                self._on_message(sender, message, now)
            case Recalled(sender, report):
                self._on_message(sender, report, now)
                if (member := self.members.get(sender)) is not None:
                    member.recalled_at = now
            case LinkLost(other):
                if (member := self.members.get(other)) is not None and member.lost_at is None:
                    member.disconnect(now)
            case LinkUp(other):
                if (member := self.members.get(other)) is not None:
                    member.reconnect()
                    member.told_at = -1.0
            case Transferring(other):
                if (member := self.members.get(other)) is not None:
                    member.heard_at = now
            case Tick():
                pass
            case TermWritten(term):
                self._on_term_written(term, now)
            case RecordWritten(decision):
                self._on_record_written(decision, now)
            case ArchiveStored(version, term):
                self.history.stored(version, term)
            case LeaveRequested(reason):
                self._on_leave_requested(reason, now)
            case ControlRequested():
                self._commands.ask(event)
            case CommandWritten(command):
                self._on_command_written(command, now)
        if self._started and self._commands.waiting:
            self._commands.attend(self._trains, self._over)
        if self._stopped:
            return
        self._deadlines(now)
        if self._stopping is not None:
            self._stop_if_closed(now)
        elif self.phase is Phase.BETWEEN:
            self._between(now)
        elif self.phase is Phase.OPEN and self._placement.place(now):
            self._listen(now)  # a peer that arrives during a step gets its order at once
        if self.phase in (Phase.BETWEEN, Phase.OPEN, Phase.DECIDING):
            self._departures.attend(self.open_pass, now)

    def next_wakeup(self) -> float:
        due = [self._next_tick]
        if self._stopping is not None:
            due.append(self._stopping[1])
        for member in self.members.lost:
            if member.lost_at is not None:
                due.append(member.lost_at + self.settings.reconnect_grace_s)
        return min(due)

    # ------------------------------------------------------------ messages

    def _on_message(self, sender: Actor, message: Message, now: float) -> None:
        if (why := self._expelled.get(sender.peer)) is not None:
            if isinstance(message, Join | Status) and self._started:
                self._out.send(sender, Halt(why, self.history.term, expelled=True))
            return
        if isinstance(message, Telemetry):
            if (known := self.members.get(sender)) is not None:
                self._reported_work.hear(known, message, now)
            return
        member = self._heard(sender, now)
        if member is None:
            return
        match message:
            case Join() | Status() if message.actor != sender or not member.is_news(message):
                pass
            case Join():
                self._on_pause(member, message.paused, now)
                member.join(message)
                self._listeners.joined(member, now)
            case Status():
                self._on_status(member, message, now)
            case Proof():
                self._on_proof(sender, message, now)
            case Relay(origin, destination, _):
                if origin == sender and self.open_pass is not None and self.open_pass.includes(origin, destination):
                    self._out.add(Send(destination, message))
            case Unreachable(_, other):
                self._on_unreachable(sender, other)
            case Leave(reason=reason):
                self._lose(member, f"left: {reason.removeprefix('left: ')}", now)
            case Want() | Prepared() | Released() | Result() | Failed():
                if isinstance(message, Prepared):
                    member.prepared = message
                if self.open_pass is not None:
                    self.open_pass.hear(sender, message, now)
                    self._settle(now)
            case _:
                pass

    def _heard(self, sender: Actor, now: float) -> Member | None:
        """Return the sender's record. Messages of old incarnations are ignored; a newer incarnation ends the older one
        at once.
        """
        if self.members.is_stale(sender):
            return None
        for old in self.members.older(sender):
            if (member := self.members.get(old)) is not None:
                self._lose(member, "its process was restarted", now)
        member = self.members.get(sender)
        if member is None:
            member = self.members.add(sender, now)
            self._out.emit(PeerSeen(str(sender)))
        else:
            member.gaps.add(now - member.heard_at)
        member.heard_at = now
        return member

    def _on_status(self, member: Member, status: Status, now: float) -> None:
        if member.report(status, self.settings.stages, self.history.rolled_back_in):
            self._out.emit(PeerJoined(str(member.actor), member.stage, f"came back with version {status.version}"))
        self._checkpoints.note(member, status, now)
        self._proofs.look(member, now)
        pauses = self._on_pause(member, status.paused, now)
        leaves = status.leaving and self._departures.announced(member, "asked to leave by its owner", now)
        if self.open_pass is not None:
            self.open_pass.on_status(status, now)
            if leaves or pauses:
                self.open_pass.drain(now)
            self._enter(member, now)
            self._settle(now)

    def _on_proof(self, sender: Actor, proof: Proof, now: float) -> None:
        if (shown := self._proofs.hear(sender, proof, now)) is not None:
            self._enter(shown, now)
            self._next_look = now

    def _on_pause(self, member: Member, reason: str, now: float) -> bool:
        """Record whether a member is paused, at most once per heartbeat. Return True if its pause has just begun."""
        before = member.paused
        if reason == before or now - member.paused_at < self.settings.heartbeat_s:
            return False
        if before and reason:
            return False  # the first reason is kept until the member resumes
        member.pause(reason, now)
        told = PeerPaused if reason else PeerResumed
        self._out.emit(told(str(member.actor), member.stage, reason or before))
        return bool(reason)

    def _enter(self, member: Member, now: float) -> None:
        """Let a peer that has caught up with the open step take part in it, without waiting for the next step."""
        actor, stage, step = member.actor, member.stage, self.open_pass
        if step is None or step.outcome is not None or stage is None or not step.promotion.lets_in(member):
            return
        if member.enters_from > self.history.version or self._failure_history.probation.strikes(actor.peer):
            return
        if self._audits.comparing or member.benched:
            return
        if not member.shown and any(m.shown for m in self.members.of_stage(stage) if m.lost_at is None):
            return
        full = (
            len(self.members.without_absent(step.pass_state.tables[stage].roster)) >= self._placement.rebalancing.most
        )
        if full or not step.promotion.has_room(stage, now):
            return
        weight = self._scheduler.weight(actor, step.pass_state, stage)
        if weight is not None:
            step.promotion.ask_for(actor, stage, weight, now)

    def _on_unreachable(self, one: Actor, other: Actor) -> None:
        if self.open_pass is None or not self.open_pass.includes(one, other):
            return
        version = self.history.version
        self._failure_history.unreachable(one, other, version)
        actors = (actor for table in self.open_pass.pass_state.tables for actor in table.roster)
        groups = islands(actors, self._failure_history.blocked(version))
        if len(groups) > 1 and groups != self._islands:
            self._out.emit(SwarmSplit([[str(actor) for actor in group] for group in groups]))
        self._islands = groups

    def _lose(self, member: Member, reason: str, now: float) -> None:
        self._listeners.lost(member, now)
        self.members.remove(member.actor)
        self._reported_work.forget(member.actor)
        self._proofs.lost(member.actor)
        if self.phase is Phase.FINISHED:
            self._out.emit(PeerGone(str(member.actor), f"the run is over: {reason}"))
        else:
            self._out.emit(PeerLost(str(member.actor), member.stage, reason))
            if self.open_pass is None and member.stage is not None and not reason.startswith("left: "):
                self._costs.lost(member.actor, reason, now)
            self._placement.rebalancing.lost(member.stage, now)
        if self.open_pass is not None:
            self.open_pass.exclude(member.actor, reason)
            self._settle(now)

    # ------------------------------------------------------------ terms and records

    def _new_term(self, wanted: NewTerm) -> None:
        """Request a new term. Nothing is sent under a term before the term is durable."""
        self.phase = Phase.STARTING
        self.open_pass = None
        self._term_request = WriteTerm(self.members.next_term(self.history.term), wanted.rollback_to)
        self._out.add(self._term_request)

    def _on_term_written(self, term: int, now: float) -> None:
        request = self._term_request
        if request is None or term != request.term:
            return
        self._term_request = None
        self.history.term = Term(term)
        if request.rollback_to is not None:
            undone = self.history.version - request.rollback_to
            self._costs.rolled_back(undone, f"rolled back to version {request.rollback_to}")
            self._costs.take_over(self._costs_of[PassKind.EVALUATE])  # it will be repeated after other steps
            self.history.rolled_back(request.rollback_to)
            self._checkpoints.rolled_back(request.rollback_to)
            self._audits.forget()
            self._proofs.clear()
            self._failure_history.is_audited = False
            self._divergence.rolled_back()
        self._scheduler.new_term()
        if not self._started:
            self._started = True
            self._out.emit(CoordinatorStarted(term, self.history.version - 1))
        self._pass_closed(now)
        if self._halts:
            self._out.emit(RunPaused(self._halts))
            self._end(Halt(self._halts, self.history.term), now)

    def _on_record_written(self, decision: Decision, now: float) -> None:
        if self.phase is not Phase.DECIDING or self.open_pass is None or decision.step != self.history.version:
            return
        decided = self.open_pass.outcome
        assert isinstance(decided, Decided)
        self.history.decided(decision)
        self._checkpoints.decided(
            self.history.version, self.open_pass.pass_state, decided.without, self._audits.took_part
        )
        self._rosters.decided(decision, self.open_pass.pass_state.tables, decided.without)
        pass_state = self.open_pass.pass_state
        self._failure_history.decided()
        self._divergence.decided()
        workers = [a for a in pass_state.actors if a not in decided.without and pass_state.has_work(a)]
        self._failure_history.settle(workers, pass_state.pass_id)
        sealed = max(pass_state.sealed_at.values()) if pass_state.sealed_at else None
        self._placement.rebalancing.decided(now - pass_state.opened_at, None if sealed is None else now - sealed)
        self._placement.decided([listener.actor for listener in pass_state.listeners])
        for actor in pass_state.actors:
            if actor not in decided.without and (member := self.members.get(actor)) is not None:
                member.worked()
                member.has_counted = member.shown = True
                if pass_state.has_work(actor):
                    self._failure_history.probation.worked(actor.peer, pass_state.pass_id)
        self.open_pass.report(decided, now)
        self._tell_cost(self._costs.decided(pass_state, decided.without, now))
        self._pass_closed(now)

    def _tell_cost(self, costed: FaultCosted | None) -> None:
        if costed is not None:
            self._out.emit(costed)

    def _pass_closed(self, now: float) -> None:
        self.phase = Phase.BETWEEN
        self.open_pass = None
        self._next_look = now
        self._waits_for = ""
        self._placement.pass_closed(now)

    # ------------------------------------------------------------ what the organiser commands

    @property
    def _trains(self) -> bool:
        """True if a training step is in progress."""
        return self.open_pass is not None and self.open_pass.pass_state.kind is PassKind.TRAIN

    @property
    def _over(self) -> str:
        """The reason why commands are no longer accepted; empty: they are."""
        if self.phase is Phase.FINISHED:
            return "the run has ended"
        return "the coordinator is stopping: start it again first" if self._stopping or self._stopped else ""

    def _on_command_written(self, command: Command, now: float) -> None:
        if not self._commands.written(command):
            return
        self._next_look = now
        if command.name in ("expel", "revoke"):
            self._expel(command, now)
        elif command.name == "admit":
            self._expelled.pop(Device.read(command.value).peer, None)  # it may return with another pass
            self.members.people.learn(self.history.controls.admitted)
        elif command.name == "rate":
            self._divergence.lowered()
        elif command.name == "dismiss":
            self._departures.excuse_now()

    def _expel(self, command: Command, now: float) -> None:
        peers = {peer for peer, by in self.history.controls.banned.items() if by == command}
        why = shut_out(command)
        self._expelled.update(dict.fromkeys(peers, why))
        for member in [member for member in self.members if member.actor.peer in peers]:
            if member.stage is not None:
                reason = signed(SENT_AWAY, command)
                self._out.emit(PeerExpelled(str(member.actor), member.stage, self.history.version, reason))
            self._out.send(member.actor, Halt(why, self.history.term, expelled=True))
            self._lose(member, "expelled", now)

    # ------------------------------------------------------------ from pass to pass

    def _between(self, now: float) -> None:
        """Open the pass that is due as soon as every stage is held.

        While the coordinator waits for something, it examines all members repeatedly. In a large swarm it does not do
        so at every message. Every member sends a message once a heartbeat, so an examination is never delayed for
        long.
        """
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S * max(0, len(self.members) - AT_ONCE)
        if (released := self._seats.release(now)) is not None:
            self._departures.announced(*released, now)
        if (doubted := self._divergence.doubted()) is not None:
            self._doubt(doubted)
            self._why_new_term = doubted.reason
            self._new_term(NewTerm())
            return
        if not self._commands.busy and (back := self._divergence.look()) is not None:
            self._halts = back.halt
            self._new_term(self._placement.go_back(back.version, back.reason))
            return
        self._checkpoints.ask(now)
        survey = self._placement.survey(now)
        self._waits_for = survey.waiting
        version, settings, end = self.history.version, self.settings, self.history.end(self.settings)
        over = version == end == self.history.archived
        paused = self.history.controls.paused if self._scheduler.due() is not None else None
        if survey.new_term is not None:
            self._new_term(survey.new_term)
        elif self._commands.busy:
            pass  # the next pass may depend on the command
        elif survey.ready and version == end and not over:
            self._wait_for_archive(now)
        elif paused is not None:
            self._pause(signed("paused", paused))
            if (self.history.archived or 0) < self.history.controls.checkpoint:
                self._placement.ask_to_save(now)
        elif survey.ready and self._rests(survey, now):
            self._pause(self._failure_history.why_rests(_everybody(survey), version))
        elif survey.ready:
            self._paused = ""
            kind = self._scheduler.due()
            if kind is None:
                self._finish(now)
            else:
                self._open(kind, survey, now)
        elif over and now - self._placement.since >= settings.recruit_after_s:
            kind = self._scheduler.due()
            if kind is None or not all(survey.rosters):
                self._finish(now)  # all steps are decided and archived, and the peers that were told so have left
            else:
                self._open(kind, survey, now)  # a member still loads a state, and may never finish
        elif survey.waiting:
            self._pause(survey.waiting)

    def _rests(self, survey: Survey, now: float) -> bool:
        """Return True if a step has failed with all present members, and it is too early to try it again."""
        if self._scheduler.due() is not PassKind.TRAIN:
            return False
        return now < self._failure_history.rest_until(_everybody(survey), self.settings.heartbeat_s)

    def _pause(self, reason: str) -> None:
        """Announce why the run does not continue, unless this reason was announced before."""
        self._waits_for = reason
        if reason != self._paused:
            self._paused = reason
            self._out.emit(RunPaused(reason))

    def _wait_for_archive(self, now: float) -> None:
        """All steps are decided, and the last checkpoint is being archived. If that exceeds a step budget, announce
        what delays it.
        """
        late = now - self._placement.since >= self.settings.step_budget_s
        if late:
            self._pause(self._checkpoints.lacking(self.history.version, now))
        if late or not self.settings.saves(self.history.version):  # otherwise its peers save it anyway
            self._placement.ask_to_save(now)

    def _open(self, kind: PassKind, survey: Survey, now: float) -> None:
        rosters, promotion = survey.rosters, survey.promotion
        if self._audits.comparing:
            rosters, promotion = [[a for a in roster if a not in promotion] for roster in rosters], set()
        pass_state = self._scheduler.pass_state(kind, rosters, now, promotion, self._placement.rebalancing.step_s)
        pass_state.listen(self._listeners.of(pass_state.pass_id, [table.roster for table in pass_state.tables], now))
        self.phase = Phase.OPEN
        self._placement.pass_opened(pass_state.actors, now)
        if kind in self._costs_of:
            self._costs_of[kind].opened(now)
        if kind is PassKind.TRAIN:
            self._failure_history.opened(_everybody(survey))
        told = kind is not PassKind.GENERATE or not self._scheduler.samples
        self.open_pass = OpenPass(
            pass_state, self.members, self.settings, self._failure_history, self._tables_told, self._out, now, told=told
        )

    def _listen(self, now: float) -> None:
        """While a pass is open, add listeners that have no part in it, and repeat the decisions that listeners lack."""
        if self.phase is not Phase.OPEN or self.open_pass is None or self.open_pass.outcome is not None:
            return
        pass_state = self.open_pass.pass_state
        rosters = [table.roster for table in pass_state.tables]
        self.open_pass.listen(self._listeners.of(pass_state.pass_id, rosters, now, self.open_pass.closed), now)
        for listener in pass_state.listeners:
            member = self.members.get(listener.actor)
            lacks = member.status.lacks if member is not None and member.status is not None else None
            if lacks is None or member is None or not member.has_heard(pass_state.pass_id):
                continue
            for decision in (self.history.since(lacks) or [])[:TOLD_AT_ONCE]:
                self._out.send(listener.actor, Decide(decision, self.history.term))

    def _settle(self, now: float) -> None:
        """Act on the outcome of the open pass. Do nothing if it has no outcome yet."""
        if self.phase is not Phase.OPEN or self.open_pass is None:
            return
        pass_state = self.open_pass.pass_state
        match self.open_pass.outcome:
            case Decided(decision, without):
                self._decide_or_audit(pass_state, decision, without, now)
            case Completed(loss_sum, token):
                self._out.add(PassClosed(pass_state.pass_id, pass_state.kind, loss_sum, token))
                self._scheduler.completed(pass_state.kind)
                self._failure_history.did_its_part([a.peer for a in pass_state.actors if pass_state.has_work(a)])
                if pass_state.kind is PassKind.EVALUATE:
                    targets = self.settings.targets_per_step // self.settings.microbatches
                    targets *= self.settings.evaluate_microbatches
                    self._out.emit(Evaluated(self.history.version, loss_sum / targets, targets))
                    self._tell_cost(self._costs_of[pass_state.kind].decided(pass_state, frozenset(), now))
                self._pass_closed(now)
            case GiveUp(reason):
                self._give_up(pass_state, reason, now)
            case Drifted(drifts):
                self._reload(pass_state, drifts)
            case Doubted() as doubted:
                self._doubt(doubted)
                self._redo(pass_state, doubted.reason)
            case Spoilt(what):
                self._divergence.spoilt(what)
                self._redo(pass_state, what)
            case Dropped(reason, who):
                self._scheduler.dropped()
                self._came_to_nothing(pass_state, reason, now, dropped=True, who=who)
                self._pass_closed(now)

    def _give_up(self, pass_state: PassState, reason: str, now: float) -> None:
        self._failure_history.aborts += 1
        dropped = self._scheduler.aborted(pass_state.kind)
        self._came_to_nothing(pass_state, reason, now, dropped=dropped)
        self._audits.gave_up(pass_state)
        self._abort(pass_state, reason)

    def _came_to_nothing(
        self, pass_state: PassState, reason: str, now: float, *, dropped: bool, who: tuple[Actor, ...] = ()
    ) -> None:
        """Report that a pass failed and its work is lost. `dropped`: it was an evaluation or a sample that is not tried
        again, because the actors `who` did not do their work.
        """
        if pass_state.kind in self._costs_of:
            self._costs_of[pass_state.kind].aborted(pass_state, reason)
        if not dropped:
            return
        self._out.emit(EvaluationDropped(self.history.version, reason, [str(actor) for actor in who]))
        if pass_state.kind is PassKind.EVALUATE:
            self._tell_cost(self._costs_of[pass_state.kind].given_up(pass_state, now))

    def _reload(self, pass_state: PassState, drifts: tuple[Drift, ...]) -> None:
        """Repeat the step. The peers whose state differs from that of their siblings must load it again first."""
        pass_id, term = pass_state.pass_id, self.members.next_term(self.history.term)
        for drift in drifts:
            believed, reload = ([str(actor) for actor in group] for group in (drift.believed, drift.reload))
            self._out.emit(StateDrifted(pass_id.step, drift.stage, believed, reload, drift.reason))
            for actor in drift.reload:
                self._failure_history.probation.strike(actor.peer, pass_id)
                if (member := self.members.get(actor)) is not None:
                    member.drifted(term)
        self._redo(pass_state, "replicas computed it with different states")

    def _doubt(self, doubted: Doubted) -> None:
        """The statements of one stage about itself are in doubt: its peers load their state again, or other peers
        replace them.

        A new term must follow, since it voids what these peers received under an older one.
        """
        reload = self._failure_history.doubts.doubt(doubted)
        left_out = [str(actor) for actor in doubted.who if actor not in reload]
        if left_out:
            self._divergence.suspect(doubted.reason)
        version, names = self.history.version, [str(actor) for actor in reload]
        self._out.emit(StageDoubted(version, doubted.stage, names, left_out, doubted.reason))
        self._failure_history.not_believed()
        for actor in doubted.who:
            if (member := self.members.get(actor)) is not None:
                member.drifted(self.members.next_term(self.history.term))

    def _redo(self, pass_state: PassState, reason: str) -> None:
        """Repeat a step that failed, without blaming any peer of it."""
        self._scheduler.aborted(pass_state.kind)
        self._audits.gave_up(pass_state)
        self._abort(pass_state, reason)

    def _abort(self, pass_state: PassState, reason: str) -> None:
        self._why_new_term = reason
        self._out.emit(StepAborted(str(pass_state.pass_id), self.members.next_term(self.history.term), reason))
        self._new_term(NewTerm())

    def _decide_or_audit(
        self, pass_state: PassState, decision: Decision, without: frozenset[Actor], now: float
    ) -> None:
        ruling = self._audits.judge(pass_state, decision, without)
        if ruling.agreed is not None:
            self._out.emit(StepAudited(decision.step, ruling.agreed))
        if not ruling.again:
            match self._divergence.objection(pass_state, without) if decision.skip else None:
                case None:
                    self.phase = Phase.DECIDING
                    self._out.add(WriteRecord(decision))
                case Doubted() as doubted:
                    self._doubt(doubted)
                    self._redo(pass_state, doubted.reason)
                case GiveUp(reason):
                    self._failure_history.not_believed()
                    self._failure_history.attempt_failed(reason, now)
                    self._give_up(pass_state, reason, now)
            return
        self._costs.audited(pass_state)
        self._failure_history.is_audited = not ruling.refused
        self._abort(pass_state, ruling.again)
        if self._audits.searching:
            self._failure_history.not_finite()  # the search expects such failures: do not delay the next try
        for actor in ruling.refused:
            self._failure_history.probation.strike(actor.peer, pass_state.pass_id)
        for each in ruling.expelled:
            self._out.emit(PeerExpelled(str(each.actor), each.stage, decision.step, each.reason))
            self._costs.expelled(each.actor, each.reason)
            why = self._expelled[each.actor.peer] = f"expelled from the run: at step {decision.step} {each.reason}"
            self._commands.order("expel", each.actor.peer, AUDIT, f"at step {decision.step} {each.reason}"[:MOST_WHY])
            self._out.send(each.actor, Halt(why, self.history.term, expelled=True))
            for member in self.members:
                if member.actor.peer == each.actor.peer:  # the peer may have been restarted since
                    self._lose(member, "expelled", now)

    def _finish(self, now: float) -> None:
        self._out.emit(RunFinished(self.history.version - 1, "all steps are decided, applied and archived"))
        decision = self.history.decision
        self._end(None if decision is None else Decide(decision, self.history.term, finished=True), now)

    def _end(self, last_word: Decide | Halt | None, now: float) -> None:
        """End the run. From now on, the coordinator only sends all peers home."""
        self.phase = Phase.FINISHED
        self.open_pass = None
        self._finished_at = now
        self._last_word = last_word
        self._say_last_word()

    def _say_last_word(self) -> None:
        if self._last_word is not None:
            for member in self.members:
                self._out.send(member.actor, self._last_word)

    # ------------------------------------------------------------ stopping

    def _on_leave_requested(self, reason: str, now: float) -> None:
        """Stop when the open pass is over. After a second request, or after `leave_s`, stop at once: the pass will be
        run again.
        """
        if self._stopping is None and self.phase in (Phase.OPEN, Phase.DECIDING):
            self._stopping = (reason, now + self.settings.leave_s)
            self._out.emit(
                RunPaused(f"{reason}: stops when the open pass is over, after at most {self.settings.leave_s:g} s")
            )
        else:
            self._stop(reason)

    def _stop_if_closed(self, now: float) -> None:
        assert self._stopping is not None
        reason, until = self._stopping
        if now >= until or self.phase not in (Phase.OPEN, Phase.DECIDING):
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Stop. Recorded decisions stand and everything else is repeated, so nothing needs to be cleaned up."""
        history, phase = self.history, self.phase
        if phase is Phase.BETWEEN and history.decision is not None:
            for member in self.members:
                self._out.send(member.actor, Decide(history.decision, history.term))
        if phase is not Phase.FINISHED:
            lost = "; the open pass will be run again" if phase in (Phase.OPEN, Phase.DECIDING) else ""
            end = history.end(self.settings)
            reason += f": {history.version} of {end} steps are decided{lost}. Peers keep their state"
        self._stopped = True
        self._stop_reason = reason
        self._out.add(Stop(reason))

    # ------------------------------------------------------------ what it does, in words

    def _tell_state(self) -> None:
        state = self._in_words()
        if state != self._state:
            self._state = state
            self._out.emit(StateChanged(*state))

    def _in_words(self) -> tuple[str, str]:
        history, settings = self.history, self.settings
        over = history.version == history.end(settings)
        paused = history.controls.paused
        if self.phase is Phase.FINISHED:
            if isinstance(self._last_word, Halt):
                return "stopping", f"the run cannot continue: {self._last_word.reason}"
            return "finished", "all steps are decided, applied and archived"
        if self._stopping is not None:
            return "stopping", self._stopping[0]
        if self._stopped:
            return "stopping", self._stop_reason
        if not self._started:
            return "starting", "the coordinator reads the decision record"
        if self.open_pass is not None:
            match self.open_pass.pass_state.kind:
                case PassKind.TRAIN if paused is not None:
                    return "pausing", f"{signed('asked to', paused)}; the open step is finished first"
                case _ if self.open_pass.waits:
                    return "waiting", self.open_pass.waits
                case PassKind.TRAIN:
                    return "training", "every stage is held"
                case PassKind.EVALUATE:
                    return "evaluating", f"version {history.version}"
                case PassKind.GENERATE:
                    return "sampling", f"version {history.version}"
        if self.phase is Phase.STARTING:
            return "waiting", f"a new term begins: {self._why_new_term}"
        if paused is not None and self._scheduler.due() is not None:
            return "paused", signed("paused", paused)
        if over:
            return "finishing", self._waits_for or f"checkpoint {history.version} is on its way to the archive"
        return "waiting", self._waits_for or f"peers load version {history.version}"

    # ------------------------------------------------------------ time

    def _excuse(self, late: float, now: float) -> None:
        """The coordinator itself was delayed. It has not yet read the messages that arrived meanwhile, so that time
        does not count against any peer.
        """
        for member in self.members:
            member.heard_at = min(now, member.heard_at + late)
        if self.open_pass is not None:
            self.open_pass.pass_state.excuse(late, now)

    def _deadlines(self, now: float) -> None:
        for member in self.members.lost:
            if member.lost_at is not None and now >= member.lost_at + self.settings.reconnect_grace_s:
                self._lose(member, "its connection broke", now)
        if now < self._next_tick:
            return
        if (late := now - self._next_tick) > 2 * self.settings.heartbeat_s:
            self._excuse(late, now)
        self._next_tick = now + self.settings.heartbeat_s
        for member, reason in self._failure_detector.judge(self.members, now):
            self._lose(member, reason, now)
        if self.phase is not Phase.FINISHED:
            self._proofs.tick(now)
        for member in self.members.paused:
            if not member.absent and now - member.paused_at >= self.settings.recruit_after_s:
                member.miss()
        if self.phase is Phase.OPEN and self.open_pass is not None:
            self.open_pass.tick(self._failure_detector, now)
            self._settle(now)
            self._listen(now)
            if self.open_pass is not None and self.open_pass.pass_state.kind is PassKind.TRAIN:
                self._progress_told.tell(self.open_pass.pass_state, len(self.members))
        elif self.phase is Phase.FINISHED:
            if not len(self.members) or now - self._finished_at > 10 * self.settings.heartbeat_s:
                halted = self._last_word if isinstance(self._last_word, Halt) else None
                self._out.add(Stop(halted.reason, failed=True) if halted else Stop(RUN_FINISHED))
            self._say_last_word()


def _everybody(survey: Survey) -> list[Actor]:
    return [actor for roster in survey.rosters for actor in roster]
