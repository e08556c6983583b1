"""A member of a group of coordinators: it maintains the decision record with the others, and coordinates while it
leads.

The leader starts a `CoordinatorCore` from the state of the record, under a term that a majority has on disk before any
peer learns of it. Whatever that core would write to its own disk is appended to the group's log. The other members
receive the peers' reports too, keep copies of the archive, and wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from swarm.events import (
    DecisionRecorded,
    Event,
    LeaderFollowed,
    LeadershipLost,
    LeadershipTaken,
    MajorityMissing,
    StepDecided,
)
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.coordinator.commands import check_words, given, refused
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.exclusions import expulsion
from swarm.protocol.coordinator.io import (
    AnswerControl,
    ArchiveStored,
    CheckpointUnfetched,
    CollectCheckpoint,
    CommandWritten,
    ControlRequested,
    CoordinatorAction,
    CoordinatorInput,
    Recalled,
    RecordWritten,
    TermWritten,
    Transferring,
    WriteCommand,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Term
from swarm.protocol.io import RUN_FINISHED, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import (
    Adjourn,
    Append,
    Appended,
    ArchivedEntry,
    Canvass,
    Command,
    CommandEntry,
    Decision,
    DecisionEntry,
    Halt,
    Join,
    Leave,
    Message,
    Status,
    Steer,
    Steered,
    TermEntry,
    Vote,
)
from swarm.protocol.raft.archive_copies import ArchiveCopies
from swarm.protocol.raft.audience import Audience
from swarm.protocol.raft.forwarded_controls import MOST, ForwardedControls
from swarm.protocol.raft.io import GroupAction, GroupInput, GroupWritten
from swarm.protocol.raft.log import Standing, Stored
from swarm.protocol.raft.raft import GroupMessage, Raft
from swarm.protocol.settings import Settings


class GroupMember:
    """One process of one member.

    `group`: all members, in the manifest's order. `holds`: {version: digests of the archive's files, by stage}.
    """

    def __init__(
        self,
        actor: Actor,
        group: tuple[Actor, ...],
        settings: Settings,
        stored: Stored,
        holds: Mapping[int, tuple[str, ...]],
        ladders: CodecLadders | None = None,
    ) -> None:
        self.actor = actor
        self.settings = settings
        self.core: CoordinatorCore | None = None
        """The coordinator's core. It exists while this member leads."""
        self._group = group
        self._stored = stored
        self._ladders = ladders
        self._record: Raft | None = None
        self._copies = ArchiveCopies(actor, group, settings.heartbeat_s, settings.step_budget_s, holds)
        self._audience = Audience(settings.heartbeat_s, settings.step_budget_s)
        self._halting = False
        self._halt_stands = False
        self._ending_since: float | None = None
        """The time when this leader could have stopped for the first time."""
        self._said = ""
        self._followed: Actor | None = None
        self._leaderless_since: float | None = None
        self._out: list[GroupAction] = []
        self._forwarded_controls = ForwardedControls(settings.heartbeat_s, settings.step_budget_s)

    # ------------------------------------------------------------ for the driver

    @property
    def record(self) -> Raft:
        assert self._record is not None, "the first input starts it"
        return self._record

    @property
    def leader(self) -> Actor | None:
        """The leader, as far as this member knows."""
        return None if self._record is None else self._record.leader

    @property
    def standing(self) -> Standing:
        return self._stored.standing if self._record is None else self._record.standing

    @property
    def members(self) -> Members:
        """The members of the swarm if this member leads; otherwise empty."""
        return Members() if self.core is None else self.core.members

    @property
    def phase(self) -> Phase:
        return Phase.STARTING if self.core is None else self.core.phase

    @property
    def open_pass(self) -> OpenPass | None:
        """The open pass, if this member leads."""
        return None if self.core is None else self.core.open_pass

    @property
    def known(self) -> frozenset[Actor]:
        """Peers that have introduced themselves. They may read the archive."""
        return frozenset(self._audience.known) | (frozenset() if self.core is None else self.core.known)

    @property
    def over(self) -> bool:
        """True if all steps are decided and a majority holds the last checkpoint."""
        standing, archived = self.standing, self.standing.archived
        end = standing.controls.end(self.settings)
        return archived is not None and archived.version == standing.version == end

    def handle(self, event: GroupInput, now: float) -> list[GroupAction]:
        if self._record is None:
            beat_s = self.settings.heartbeat_s / 2
            grace_s = self.settings.reconnect_grace_s
            self._record = Raft(self.actor, self._group, beat_s, grace_s, self._stored, now)
        self.record.tick(now)  # first, because a member that stood still may have lost its leadership
        self._step_down()
        match event:
            case Received(sender, Canvass() | Vote() | Append() | Appended() | Adjourn() as message):
                if sender in self._group:
                    self._on_member(sender, message, now)
            case Received(sender, Steer() | Steered() as message):
                if sender in self._group:
                    self._on_steering(sender, message, now)
            case Received(sender, message):
                self._on_peer(sender, message, now)
                self._tell_core(event, now)
            case LinkLost(other):
                if other in self._group:
                    self.record.lost(other, now)
                else:
                    self._audience.lose(other)
                    self._tell_core(event, now)
            case LinkUp(other):
                if other not in self._group:
                    self._tell_core(event, now)
            case GroupWritten(number):
                self.record.written(number)
            case ArchiveStored():
                self._copies.stored(event, self.record, now, leads=self.core is not None)
            case LeaveRequested(reason):
                self._out.append(Stop(reason))
            case ControlRequested():
                self._on_request(event, now)
            case Tick() | Transferring() | CheckpointUnfetched():
                self._tell_core(event, now)
        self._follow_up(now)
        out, self._out = self._out, []
        return out

    def next_wakeup(self) -> float:
        if self._record is None:
            return 0.0
        due = min(self.record.next_wakeup(), self._forwarded_controls.next_at)
        return due if self.core is None else min(due, self.core.next_wakeup())

    # ------------------------------------------------------------ the leader

    def _follow_up(self, now: float) -> None:
        """Act on the changes of the record."""
        self._step_down()
        while True:
            if self.record.leads and self.core is None:
                self._take_over(now)
            settled = self.record.take_settled()
            if not settled:
                break
            for entry in settled:
                self._on_settled(entry, now)
            self._step_down()
        self._copy_archive(now)
        self._compare_audience(now)
        self._say_who_leads(now)
        self._steer(now)
        self._out += self.record.take()

    def _take_over(self, now: float) -> None:
        record, standing = self.record, self.record.prospect()
        archived = standing.archived.version if standing.archived is not None else 0 if self.settings.imported else None
        self.core = CoordinatorCore(
            self.actor,
            self.settings,
            standing.term,
            standing.decision,
            archived,
            standing.rolled_back_in,
            self._ladders,
            standing.controls,
            standing.soundness,
            tuple(entry.version for entry in standing.checkpoints),
            self._group,
        )
        self._forwarded_controls.again()
        self._copies.forget_pending()
        self._halting = self._halt_stands = False
        self._emit(LeadershipTaken(str(self.actor), record.ballot, record.reached(now), len(self._group)))
        self._tell_core(Tick(), now)
        self._ending_since = None
        for peer, report in self._audience.present(now):
            self._tell_core(Recalled(peer, report), now)

    def _copy_archive(self, now: float) -> None:
        """Make sure that all members hold the same checkpoints."""
        part = self._copies.follow if self.core is None else self._copies.offer
        self._out += part(self.record, now)

    def _compare_audience(self, now: float) -> None:
        """Resign if this leader has heard less than half as many people as another member for a long time."""
        record = self.record
        self._audience.learn(record.standing.controls.admitted)
        record.peers = self._audience.people(now)
        training = self.core is not None and self.phase is not Phase.FINISHED
        most = record.most_heard(now) if training else 0
        if self._audience.fewer_for(record.peers, most, now) >= 2 * record.patience_s:
            record.resign(now, f"people heard: {record.peers}; by another coordinator: {most}")
            self._step_down()

    def _step_down(self) -> None:
        if self.core is not None and not self.record.leads:
            self.core = None
            self._copies.forget_pending()
            self._emit(LeadershipLost(str(self.actor), self.record.ballot, self.record.why_not))

    def _say_who_leads(self, now: float) -> None:
        """Report each change of the leader once."""
        record = self.record
        leader = record.leader
        if leader is None and self._leaderless_since is None:
            self._leaderless_since = now
        if leader is not None:
            self._leaderless_since = None
            self._said = ""
            if leader not in (self.actor, self._followed):
                self._emit(LeaderFollowed(str(leader), record.ballot))
            self._followed = leader
            return
        assert self._leaderless_since is not None
        alone_s = now - self._leaderless_since
        reached = record.reached(now)
        if reached < record.majority and alone_s >= 2 * record.patience_s and not self._said:
            self._said = (
                f"{reached} of {len(self._group)} coordinators can be reached; a decision needs {record.majority}"
            )
            self._followed = None
            self._emit(MajorityMissing(reached, record.majority, self._said))
        if self.over and alone_s >= self.settings.step_budget_s:
            self._out.append(Stop(RUN_FINISHED))

    # ------------------------------------------------------------ messages

    def _on_member(self, sender: Actor, message: GroupMessage, now: float) -> None:
        if isinstance(message, Adjourn):
            if message.ballot >= self.record.ballot and sender != self.actor:
                self._out.append(Stop(message.reason, failed=message.failed))
            return
        self.record.hear(sender, message, now)

    def _on_peer(self, sender: Actor, message: Message, now: float) -> None:
        """Remember which peers are present, even while another member leads."""
        match message:
            case Join() | Status() if message.actor == sender:
                self._audience.hear(message, now)
            case Leave():
                self._audience.lose(sender)

    # ------------------------------------------------------------ the leader's core

    def _tell_core(self, event: CoordinatorInput, now: float) -> None:
        if self.core is not None:
            for action in self.core.handle(event, now):
                self._pass_on(action, now)

    def _pass_on(self, action: CoordinatorAction, now: float) -> None:
        """Carry out an action of the core. What the core would write goes into the group's record. A message that ends
        the run waits until a majority agrees.
        """
        ballot = self.record.ballot
        match action:
            case WriteTerm(term, rollback_to):
                self.record.propose(TermEntry(ballot, Term(term), rollback_to))
            case WriteRecord(decision):
                self.record.propose(DecisionEntry(ballot, decision))
            case WriteCommand(command):
                self.record.propose(CommandEntry(ballot, command))
            case AnswerControl():
                self._answer(action)
            case Send(_, Halt(expelled=False)) if not self._halt_stands:
                self._confirm_halt()  # the core repeats the order
            case Stop(reason, failed):
                if self._may_adjourn(failed, now):  # if not, the core repeats the order
                    self._adjourn(reason, failed)
            case CollectCheckpoint():
                self._out += self._copies.collect(action, now)
            case Emit(StepDecided() as event):
                self._emit(replace(event, leader=str(self.actor)))
            case _:
                self._out.append(cast(GroupAction, action))

    def _confirm_halt(self) -> None:
        """Confirm that this member still leads by committing one more entry, because a leader that was replaced must
        not end the run.
        """
        assert self.core is not None
        if not self._halting:
            self._halting = True
            self.record.propose(TermEntry(self.record.ballot, Term(self.core.history.term + 1)))

    def _may_adjourn(self, failed: bool, now: float) -> bool:
        """Return True if the run may end now.

        A failed run ends once a majority agrees. A finished run ends once all present members hold its last checkpoint,
        or after a step budget.
        """
        if failed:
            return self._halt_stands
        if self._ending_since is None:
            self._ending_since = now
        waited = now - self._ending_since >= self.settings.step_budget_s
        return waited or len(self.record.holders) >= self.record.reached(now)

    def _adjourn(self, reason: str, failed: bool) -> None:
        for member in self._group:
            if member != self.actor:
                self._out.append(Send(member, Adjourn(self.record.ballot, reason, failed)))
        self._out.append(Stop(reason, failed))

    def _on_settled(self, entry: object, now: float) -> None:
        """An entry is committed, and this member's disk has it. Act on it."""
        mine = self.core is not None and getattr(entry, "ballot", 0) == self.record.ballot
        match entry:
            case TermEntry(term=term, rollback_to=rollback_to):
                if rollback_to is not None:
                    self._copies.roll_back(rollback_to)
                if mine and self._halting:
                    self._halt_stands = True
                elif mine:
                    self._tell_core(TermWritten(term), now)
            case DecisionEntry(decision=decision):
                if mine:
                    self._tell_core(RecordWritten(decision), now)
                else:
                    self._emit(recorded(decision, self.leader))
            case ArchivedEntry(version=version, term=term, digests=digests):
                if mine:
                    self._tell_core(ArchiveStored(version, term, digests), now)
            case CommandEntry(command=command):
                if mine:
                    self._tell_core(CommandWritten(command), now)
                elif self.core is not None:
                    self._report(command, now)

    def _report(self, command: Command, now: float) -> None:
        """Report a command of the former leader, which may have died before it could do so."""
        self._emit(given(command))
        standing = self.standing
        excluded = standing.controls.excluded_by(command)
        for actor, report in self._audience.present(now):
            if actor.peer in excluded and report.stage is not None:
                self._emit(expulsion(actor, report.stage, standing.version, command))

    # ------------------------------------------------------------ commands of the organiser

    def _on_request(self, request: ControlRequested, now: float) -> None:
        try:
            check_words(request)  # before it is sent to any member
        except ValueError as error:
            self._emit(refused(request, str(error)))
            self._out.append(AnswerControl(request.request, error=str(error)))
            return
        if not self._forwarded_controls.ask(request, None, now):
            why = f"{MOST} other requests wait for a leading coordinator: try again later"
            self._out.append(AnswerControl(request.request, error=why, unsure=True))

    def _on_steering(self, sender: Actor, message: Steer | Steered, now: float) -> None:
        match message:
            case Steer(request, command, value, by, why):
                if self.core is not None:  # if not, or if too many wait, the other member repeats it
                    self._forwarded_controls.ask(ControlRequested(request, command, value, by, why), sender, now)
            case Steered(request, number, text, error):
                if sender == self.leader:
                    self._answer(AnswerControl(request, number, text, error))

    def _steer(self, now: float) -> None:
        """Send the waiting requests to the leader, repeatedly until it answers."""
        for request in self._forwarded_controls.due(now):
            if self.core is not None:
                self._tell_core(request, now)
            elif (leader := self.record.leader) is not None:
                fields = (request.request, request.command, request.value, request.by, request.why)
                self._out.append(Send(leader, Steer(*fields)))
        reached = f"{self.record.reached(now)} of {len(self._group)} coordinators can be reached"
        for request in self._forwarded_controls.given_up(now):
            error = f"no leading coordinator has answered ({reached}); later, `control status` shows if it took effect"
            self._answer(AnswerControl(request.request, error=error, unsure=True))

    def _answer(self, answer: AnswerControl) -> None:
        asked = self._forwarded_controls.answered(answer.request)
        if asked is None:
            return
        if asked.origin is None:
            self._out.append(answer)
        else:
            steered = Steered(answer.request, answer.number, answer.text, answer.error)
            self._out.append(Send(asked.origin, steered))

    def _emit(self, event: Event) -> None:
        self._out.append(Emit(event))


def recorded(decision: Decision, leader: Actor | None) -> DecisionRecorded:
    """The event with which a member that does not lead reports a decision."""
    return DecisionRecorded(
        decision.term,
        decision.step,
        "" if leader is None else str(leader),
        decision.scale,
        decision.loss_sum / decision.tokens,
        decision.gradient_norm,
        decision.tokens,
        decision.rate,
    )
