"""The coordinator's core: it routes each input to the part of the coordinator that it concerns.

It holds no parameters. A step is committed when its decision record is durable; only then are the peers told. The
coordinator never asks peers for outcomes. `pass_cycle` opens one pass after another; `membership` and `placement` know
the peers and their stages.
"""

from __future__ import annotations

from typing import cast

from swarm.events import PeerGone, PeerJoined, PeerLost
from swarm.protocol.admissions import Device
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.announced_state import AnnouncedState
from swarm.protocol.coordinator.commands import Commands
from swarm.protocol.coordinator.departures import Departures
from swarm.protocol.coordinator.divergence import Divergence
from swarm.protocol.coordinator.exclusions import Exclusions
from swarm.protocol.coordinator.io import (
    ArchiveStored,
    CheckpointUnfetched,
    CommandWritten,
    ControlRequested,
    CoordinatorAction,
    CoordinatorInput,
    Recalled,
    RecordWritten,
    TermWritten,
    Transferring,
)
from swarm.protocol.coordinator.listeners import Listeners
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.presence import Presence
from swarm.protocol.coordinator.membership.reported_work import ReportedWork
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.pass_cycle import PassCycle
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.passes.tables_report import weights_of
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.coordinator.placement.placement import Placement
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.proofs import Proofs
from swarm.protocol.coordinator.stopping import Stopping
from swarm.protocol.ids import Actor, Term
from swarm.protocol.io import LeaveRequested, LinkLost, LinkUp, Received, Send, Tick
from swarm.protocol.messages import (
    Command,
    Decision,
    Failed,
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
from swarm.protocol.settings import Settings
from swarm.protocol.soundness import Soundness


class CoordinatorCore:
    """One incarnation of the coordinator. The values of `term` and the arguments after it come from its disk, except
    `ladders`.

    `ladders`: given if the run lets the coordinator choose the codecs. `kept`: versions in the archive, in addition to
    `archived`. `group`: all coordinators of the run, if there are several.
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
        group: tuple[Actor, ...] = (),
    ) -> None:
        self.actor = actor
        self.settings = settings
        history = self.history = History(
            Term(term),
            last_decision,
            archived,
            rolled_back_in,
            controls=controls or Controls(),
            soundness=soundness or Soundness(),
            kept=tuple(sorted(kept)),
        )
        members = self.members = Members()
        members.people.learn(history.controls.admitted)
        out = self._out = Outbox(actor)
        failures = FailureHistory(members.people)
        stage_costs = StageCosts(settings.stages, settings.stage_needs, settings.stage_frames)
        rebalancing = Rebalancing(settings, history, members, stage_costs, out)
        self._failure_detector = FailureDetector(settings)
        self._presence = Presence(settings, members, out)
        self._proofs = Proofs(settings, history, members, failures.probation, out)
        self._reported_work = ReportedWork(actor, settings, history, members, out)
        self._seats = Seats(settings, history, members, stage_costs, failures, out)
        self._placement = Placement(actor, settings, history, members, rebalancing, self._seats, failures, out)
        self._listeners = Listeners(settings, history, members, rebalancing, out)
        self._departures = Departures(settings, history, members, self._seats, out)
        self._commands = Commands({each.peer for each in (actor, *group)}, settings, history, members, out)
        self._exclusions = Exclusions(history, members, self._commands, out)
        self._divergence = Divergence(settings, history, members, failures.doubts, self._commands, out)
        self._cycle = PassCycle(
            settings,
            history,
            members,
            failures,
            stage_costs,
            self._placement,
            self._listeners,
            self._divergence,
            ladders,
            out,
        )
        self._stopping = Stopping(settings, history, members, out)
        self._state = AnnouncedState(out)
        self._next_tick = 0.0

    @property
    def phase(self) -> Phase:
        return self._cycle.phase

    @property
    def open_pass(self) -> OpenPass | None:
        """The open pass. It exists only in the phases OPEN and DECIDING."""
        return self._cycle.open_pass

    @property
    def known(self) -> frozenset[Actor]:
        """The peers that have introduced themselves. Other peers may not read the archive."""
        return frozenset(member.actor for member in self.members)

    @property
    def state(self) -> tuple[str, str]:
        """The coordinator's state, as in StateChanged, and the reason for it."""
        return self._state.told

    @property
    def stages_held(self) -> dict[str, int | None]:
        """The stage of every member. None: the member stands by, or has no place yet."""
        return {str(member.actor): member.stage for member in self.members}

    @property
    def decided(self) -> int:
        """The last decided step that was not rolled back; −1: none. CoordinatorStarted, StepDecided and RolledBack
        report it.
        """
        return self._cycle.decided

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
        """Process an input and return the actions to carry out, in order."""
        if not self.state[0]:
            self._tell_state()  # first of all, because a new life of the coordinator begins
        self._cycle.start()
        self._dispatch(event, now)
        if self._cycle.started and self._commands.waiting:
            self._commands.attend(self._cycle.trains, self._over)
        if not self._stopping.is_done:
            self._advance(now)
        self._tell_state()
        return cast(list[CoordinatorAction], self._out.take())

    def _dispatch(self, event: CoordinatorInput, now: float) -> None:
        match event:
            case Received(sender, message):
                self._on_message(sender, message, now)
            case Recalled(sender, report):
                self._on_message(sender, report, now)
                self._presence.recalled(sender, now)
            case LinkLost(other):
                self._presence.link_lost(other, now)
            case LinkUp(other):
                self._presence.link_up(other)
            case Transferring(other):
                self._presence.transferring(other, now)
                self._cycle.checkpoints.arrives(other, now)
            case Tick():
                pass
            case TermWritten(term):
                if self._cycle.term_written(term, now):
                    self._proofs.clear()
            case RecordWritten(decision):
                self._cycle.record_written(decision, now)
            case ArchiveStored(version, term, _):
                self.history.stored(version, term)
            case CheckpointUnfetched(version, stage):
                self._cycle.checkpoints.unfetched(version, stage)
            case LeaveRequested(reason):
                self._stopping.request(reason, self.phase, now)
            case ControlRequested():
                self._commands.ask(event)
            case CommandWritten(command):
                self._on_command_written(command, now)

    def _advance(self, now: float) -> None:
        """Do what is due, whatever the input was."""
        self._deadlines(now)
        if self._stopping.begun:
            self._stopping.attend(self.phase, now)
        elif self._cycle.is_due(now):
            if (released := self._seats.release(now)) is not None:
                self._departures.announced(*released, now)
            self._cycle.between(self._commands, now)
        elif self.phase is Phase.OPEN and self._placement.place(now):
            self._cycle.listen(now)  # a peer that arrives during a step gets its order at once
        if self.phase in (Phase.BETWEEN, Phase.OPEN, Phase.DECIDING):
            self._departures.attend(self.open_pass, now)

    def next_wakeup(self) -> float:
        return min([self._next_tick, *self._stopping.deadlines(), *(at for _, at in self._presence.grace_ends())])

    def _tell_state(self) -> None:
        stopping = None if self.phase is Phase.FINISHED else self._stopping.in_words()
        self._state.tell(stopping or self._cycle.in_words())

    # ------------------------------------------------------------ messages

    def _on_message(self, sender: Actor, message: Message, now: float) -> None:
        if self._exclusions.reason(sender.peer) is not None:
            if isinstance(message, Join | Status) and self._cycle.started:
                self._exclusions.halt(sender)
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
                self._presence.pause(member, message.paused, now)
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
                self._cycle.unreachable(sender, other)
            case Leave(reason=reason):
                self._lose(member, f"left: {reason.removeprefix('left: ')}", now)
                self.members.ended(sender)
            case Want() | Prepared() | Released() | Result() | Failed():
                if isinstance(message, Prepared):
                    member.prepares(message)
                if self.open_pass is not None:
                    self.open_pass.hear(sender, message, now)
                    self._settle(now)
            case _:
                pass

    def _heard(self, sender: Actor, now: float) -> Member | None:
        """Return the sender's record. Messages of old incarnations, and of one that has left, are ignored; a newer
        incarnation ends the older one at once.
        """
        if self.members.is_stale(sender):
            return None
        for old in self.members.older(sender):
            if (member := self.members.get(old)) is not None:
                self._lose(member, "its process was restarted", now)
        return self._presence.heard(sender, now)

    def _on_status(self, member: Member, status: Status, now: float) -> None:
        if member.report(status, self.settings.stages, self.history.rolled_back_in, self.settings.heartbeat_s):
            self._out.emit(PeerJoined(str(member.actor), member.stage, f"came back with version {status.version}"))
        if not self._cycle.goes_back:  # the history that its checkpoint belongs to may soon be void
            self._cycle.checkpoints.note(member, status, now)
        self._proofs.look(member, now)
        pauses = self._presence.pause(member, status.paused, now)
        leaves = status.leaving and self._departures.announced(member, "asked to leave by its owner", now)
        if self.open_pass is not None:
            self.open_pass.on_status(status, now)
            if leaves or pauses:
                self.open_pass.drain(now)
            self._cycle.let_in(member, now)
            self._settle(now)

    def _on_proof(self, sender: Actor, proof: Proof, now: float) -> None:
        if (shown := self._proofs.hear(sender, proof, now)) is not None:
            self._cycle.let_in(shown, now)
            self._cycle.look_at_once(now)

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
                self._cycle.costs.lost(member.actor, reason, now)
            self._placement.rebalancing.lost(member, now)
        if self.open_pass is not None:
            self.open_pass.lost(member.actor, reason, now)
            self._settle(now)

    def _settle(self, now: float) -> None:
        """Act on the outcome of the open pass, if it has one."""
        for accused in self._cycle.settle(now):
            self._cycle.costs.expelled(accused.actor, accused.reason)
            for member in self._exclusions.by_audit(accused, self.history.version):
                self._lose(member, "expelled", now)

    # ------------------------------------------------------------ what the organiser commands

    @property
    def _over(self) -> str:
        """The reason why commands are no longer accepted; empty: they are."""
        if self.phase is Phase.FINISHED:
            return "the run has ended"
        stops = self._stopping.begun or self._stopping.is_done
        return "the coordinator is stopping: start it again first" if stops else ""

    def _on_command_written(self, command: Command, now: float) -> None:
        if not self._commands.written(command):
            return
        self._cycle.look_at_once(now)
        match command.name:
            case "expel" | "revoke":
                for member in self._exclusions.by_command(command):
                    self._exclusions.send_away(member, command)
                    self._lose(member, "expelled", now)
            case "admit":
                device = Device.read(command.value)
                self._exclusions.readmit(device.peer)  # it may return with another pass
                self.members.people.admit(device)
            case "rate":
                self._divergence.lowered()
            case "dismiss":
                self._departures.excuse_now()

    # ------------------------------------------------------------ time

    def _deadlines(self, now: float) -> None:
        for member, at in self._presence.grace_ends():
            if now >= at:
                self._lose(member, "its connection broke", now)
        if now < self._next_tick:
            return
        if (late := now - self._next_tick) > 2 * self.settings.heartbeat_s:
            self._presence.excuse(late, now)
            if self.open_pass is not None:
                self.open_pass.pass_state.excuse(late, now)
        self._next_tick = now + self.settings.heartbeat_s
        self._beat(now)

    def _beat(self, now: float) -> None:
        """A heartbeat is over."""
        for member, reason in self._failure_detector.judge(self.members, now):
            self._lose(member, reason, now)
        if self.phase is not Phase.FINISHED:
            self._proofs.tick(now)
        self._presence.give_up_paused(now)
        if self._cycle.tick(self._failure_detector, now):
            self._settle(now)
            self._cycle.listen(now)
            self._cycle.tell_progress()
