"""The peer's core: it routes each input to the part of the peer that it concerns.

Sans-IO: `handle(input, now) -> actions`. The driver computes, stores and transports. `step_cycle` begins passes and
applies decisions, `pass_run` is the peer's share of the open pass, `held_stage` its stage and version, `status_reports`
its reports to the coordinator. This file decides which coordinator the peer obeys, and how it pauses and leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from swarm.events import LeaderFollowed, OutOfMemory, PeerJoined, PeerPaused, PeerResumed
from swarm.protocol.ids import Actor
from swarm.protocol.io import LeaveRequested, LinkLost, LinkUp, Received, Stop, Tick
from swarm.protocol.messages import (
    MAX_PAUSED,
    Amend,
    Assign,
    Decide,
    Dismiss,
    Disproved,
    Excuse,
    Fenced,
    Frame,
    Halt,
    LeaveSeat,
    Means,
    Message,
    Open,
    Pending,
    Prove,
    ReducedPart,
    ReducePart,
    Relay,
    Release,
    TakeSeats,
    Want,
)
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.delta_bases import DeltaBases, Visits
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import (
    AppliedStep,
    Assembled,
    BackwardDone,
    BucketSummed,
    CheckpointSaved,
    ComputeFailed,
    Fetched,
    ForwardDone,
    LinksMeasured,
    MeansChanged,
    MemoryShort,
    OpenSeats,
    PartEncoded,
    PauseChanged,
    PeerAction,
    PeerInput,
    ResultDone,
    StateFailed,
    StateLoaded,
    StateShown,
    StateSpoilt,
    SumsFetched,
    SumsMissing,
    Undelivered,
    WeightsDone,
)
from swarm.protocol.peer.leader import Control, Leader
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.peer.peer_messages import PeerMessages
from swarm.protocol.peer.reachability import Reachability
from swarm.protocol.peer.shutdown import Shutdown
from swarm.protocol.peer.state_proofs import StateProofs
from swarm.protocol.peer.status_reports import Saved, StatusReports
from swarm.protocol.peer.step_cycle import StepCycle
from swarm.protocol.settings import Settings


class PeerCore:
    """One incarnation of one peer."""

    def __init__(
        self,
        actor: Actor,
        coordinator: Actor,
        settings: Settings,
        saved: Saved | None = None,
        visits: Visits | None = None,
        base_capacity: int = 0,
        group: tuple[Actor, ...] = (),
    ) -> None:
        """`coordinator`: the coordinator to start with; if there are several, a member of `group`. `saved`: the newest
        checkpoint on this machine's disk. `visits`: the steps that train on the same samples; given if the codec uses
        activations of earlier steps. `base_capacity`: number of activations of earlier steps for which this machine has
        room.
        """
        self.actor = actor
        self.leader = Leader(coordinator, group)
        self.settings = settings
        self.held_stage = HeldStage()
        self._out = Outbox(actor)
        self._status_reports = StatusReports(actor, settings, saved)
        self._reachability = Reachability(settings.reconnect_grace_s)
        self._proofs = StateProofs(self.held_stage, self._out)
        self._bases = DeltaBases(visits, settings.steps, base_capacity)
        self._steps = StepCycle(
            actor,
            settings,
            self.leader,
            self.held_stage,
            self._status_reports,
            self._reachability,
            self._proofs,
            self._bases,
            lambda: bool(self.paused),
            self._out,
        )
        self._peer_messages = PeerMessages(actor, self.leader, self._steps, self._out)
        self._shutdown = Shutdown(actor, self.leader.group, settings.leave_s, self._out)
        self._shortages = 0
        self.short = ""
        """The reason why this peer leaves: it has run out of memory twice. Empty: it has not."""
        self.paused = ""
        """The reason why this peer begins no microbatches at present. Empty: it begins them."""

    @property
    def pass_run(self) -> PassRun | None:
        """The peer's share of the open pass."""
        return self._steps.pass_run

    @property
    def finished(self) -> bool:
        """True if all steps of the run are decided and this peer knows it."""
        return self._steps.finished

    @property
    def coordinator(self) -> Actor:
        """The coordinator that this peer obeys."""
        return self.leader.actor

    @property
    def leaving(self) -> bool:
        """True if this peer was asked to leave before the end of the run."""
        return self._shutdown.begun

    @property
    def routes(self) -> Mapping[Actor, Actor]:
        """For each actor that has no working direct connection: the actor that forwards messages to it."""
        return self._out.routes

    @property
    def means(self) -> Means:
        return self._status_reports.means

    def offers(self, means: Means) -> None:
        """Set the resources that the machine offers, if they were measured after this core was made. Call this before
        the first input.
        """
        self._status_reports.means = means

    # ------------------------------------------------------------ entry

    def handle(self, event: PeerInput, now: float) -> list[PeerAction]:
        """Process an input and return the actions to carry out, in order."""
        self._dispatch(event, now)
        self._deadlines(now)
        if not self._shutdown.gone:
            self._steps.advance()
            self._report(now)
        return cast(list[PeerAction], self._out.take())

    def _dispatch(self, event: PeerInput, now: float) -> None:
        match event:
            case Received(sender, message):
                self._on_message(sender, message, now)
            case LinkLost(other):
                self._reachability.lost(other, now)
            case LinkUp(other):
                self._on_link_up(other, now)
            case Undelivered(other, messages):
                if self.pass_run is not None:
                    self.pass_run.undelivered(other, messages)
            case Tick():
                pass
            case StateLoaded() | StateFailed():
                self._on_loaded(event)
            case SumsFetched():
                self._steps.catch_up.fetched(event)
            case SumsMissing():
                self._steps.sums_missing(event)
            case Fetched(nbytes):
                self._status_reports.fetched(nbytes)
            case ForwardDone() | BackwardDone() | WeightsDone() | ResultDone() | ComputeFailed():
                self._on_computed(event, now)
            case MemoryShort():
                self._on_memory_short(event, now)
            case PartEncoded() | BucketSummed() | Assembled():
                self._on_reduced(event)
            case AppliedStep(step, digest):
                self._catch_early(self._steps.applied(step, digest, now), now)
            case CheckpointSaved():
                self._steps.saves.saved(event)
            case StateSpoilt():
                self._steps.saves.spoilt(event, now)
            case StateShown():
                self._proofs.shown(event, self.coordinator)
            case LinksMeasured():
                self._status_reports.measured(event)
            case MeansChanged(means):
                self._status_reports.has(means, now)
            case PauseChanged(reason):
                self._pause(reason, now)
            case LeaveRequested(reason):
                self._leave(reason, now)

    def _report(self, now: float) -> None:
        """Send a report if one is due: to all coordinators at a heartbeat, because each may become the leader,
        otherwise only to the leader.
        """
        beat, steps = now >= self._status_reports.next_at, self._steps
        report = self._status_reports.report(self.held_stage, self.pass_run, steps.catch_up, steps.pace, now)
        if report is not None:
            for coordinator in self.leader.group if beat else (self.coordinator,):
                self._out.send(coordinator, report)
        if beat and self.pass_run is not None:
            self.pass_run.microbatches.tell_results_again()

    def next_wakeup(self) -> float:
        due = [self._status_reports.next_at, *self._reachability.deadlines()]
        if self.pass_run is not None:
            due += self.pass_run.deadlines()
        return min(due + self._shutdown.deadlines())

    def _deadlines(self, now: float) -> None:
        over = self._reachability.given_up(now)
        if over and self.pass_run is not None:
            self.pass_run.go_around(over, now)
        for other in over:
            if self.leader.group == (other,):  # in a group of coordinators, another one may soon become the leader
                self._shutdown.abandoned()
        if self.pass_run is not None:
            self.pass_run.tick(now)
        self._shutdown.tick(now)

    def _on_link_up(self, other: Actor, now: float) -> None:
        self._out.straight(other)
        if self.pass_run is not None:
            self.pass_run.deliver(other)
        if not self._reachability.up(other):
            return
        if self.leader.includes(other):
            self._status_reports.again(now)
        if self.pass_run is not None:
            self.pass_run.reconnected(other, now)

    # ------------------------------------------------------------ done by the driver

    def _on_loaded(self, event: StateLoaded | StateFailed) -> None:
        if self.held_stage.loaded(event):
            reason = f"holds version {event.version}"
            self._out.emit(PeerJoined(str(self.actor), event.stage, reason))
            self._proofs.reached(self.coordinator)

    def _on_computed(
        self, event: ForwardDone | BackwardDone | WeightsDone | ResultDone | ComputeFailed, now: float
    ) -> None:
        self._steps.pace.measure(event)
        if self.pass_run is not None and event.pass_id == self.pass_run.pass_id:
            self.pass_run.on_computed(event, now)
        if isinstance(event, ComputeFailed):
            self._steps.failed(event)

    def _on_reduced(self, event: PartEncoded | BucketSummed | Assembled) -> None:
        if isinstance(event, Assembled):
            self._steps.restored(event)
        if self.pass_run is not None:
            self.pass_run.on_reduced(event)

    def _on_memory_short(self, event: MemoryShort, now: float) -> None:
        """Memory ran out. The first time, keep less. The second time, leave, because each failure delays the other
        peers.
        """
        self._shortages += 1
        leaves = self._shortages > 1
        self._out.emit(OutOfMemory(str(self.actor), event.what, event.before, event.now, leaves))
        if leaves and not self.short:
            self.short = (
                f"out of memory again, {event.what}: give this peer more (--max-memory, another --device), or ask the "
                "organiser for smaller stages"
            )
            self._leave(self.short, now)

    # ------------------------------------------------------------ messages

    def _on_message(self, sender: Actor, message: Message, now: float) -> None:
        match message:
            case Relay():
                self._peer_messages.relayed(sender, message, now)
            case Want() | Pending() | Frame() | ReducePart() | ReducedPart():
                self._peer_messages.hear(sender, message, None, now)
            case Assign() | Open() | Amend() | Release() | Fenced() | Decide() | Dismiss() | Halt():
                if self._obeys(sender, message, now):
                    self._on_control(sender, message, now)
            case TakeSeats() | LeaveSeat():
                if self._obeys(sender, message, now):
                    self._on_seats(message, now)
            case Prove() | Disproved():
                if self._obeys(sender, message, now):
                    self._on_proof_asked(message)
            case Excuse(reason=reason):
                if self._obeys(sender, message, now) and not self._shutdown.begun:
                    self._leave(reason, now)
            case _:
                pass

    def _obeys(self, sender: Actor, message: Control, now: float) -> bool:
        """True if the peer must follow an order. If this makes the sender the new leader, report to it at once."""
        before = self.coordinator
        if not self.leader.obeys(sender, message):
            return False
        if sender != before:
            self._out.emit(LeaderFollowed(str(sender), self.leader.term))
            self._steps.follow_another()
            self._status_reports.again(now)
        return True

    def _on_control(self, sender: Actor, message: Control, now: float) -> None:
        match message:
            case Assign():
                self._steps.assigned(message)
            case Open():
                self._catch_early(self._steps.open(message, now), now)
            case Amend(pass_id, stage, table, reason):
                if (pass_run := self._peer_messages.pass_run_of(pass_id, sender, message)) is not None:
                    pass_run.amend([(stage, table)], reason, now)
            case Release(pass_id, number, microbatches):
                if (pass_run := self._peer_messages.pass_run_of(pass_id, sender, message)) is not None:
                    pass_run.microbatches.release(number, microbatches)
            case Fenced(pass_id, reason):
                if (pass_run := self._peer_messages.pass_run_of(pass_id, sender, message)) is not None:
                    pass_run.fence(reason)
            case Decide():
                self._steps.decided(message, now)
            case Halt(reason):
                self._out.add(Stop(reason, failed=True))
            case Dismiss(reason=reason):
                self._shutdown.dismissed(reason)

    def _catch_early(self, begun: bool, now: float) -> None:
        """If a pass has begun, process the messages that arrived too early for it."""
        if not begun:
            return
        early = self._peer_messages.early
        for sender, kept in early.take():
            self._on_message(sender, kept, now)
        if self.pass_run is not None:
            self.pass_run.missed(early.dropped)
            self.pass_run.reduce_if_sealed(now)
        early.dropped.clear()

    def _on_seats(self, message: TakeSeats | LeaveSeat, now: float) -> None:
        seating = self.means.seating
        if seating is None:
            return
        match message:
            case TakeSeats(seats=seats, reason=reason):
                if seating.grows and len(seating.peers) < seats:
                    self._out.add(OpenSeats(seats, reason))
            case LeaveSeat(reason=reason):
                if seating.on_call and not self._shutdown.begun:
                    self._leave(reason, now)

    def _on_proof_asked(self, message: Prove | Disproved) -> None:
        if message.term < self.held_stage.term:
            return  # a rollback may have voided the version in question
        match message:
            case Prove():
                self._proofs.asked(message, self.coordinator, applying=self._steps.is_applying)
            case Disproved(nonce=nonce) if not self._steps.is_applying and self.pass_run is None:
                if self._proofs.is_wrong(nonce, self.coordinator):
                    self._steps.start_again("its siblings hold another state")

    # ------------------------------------------------------------ leaving and pausing

    def _leave(self, reason: str, now: float) -> None:
        needed = self.pass_run is not None or self.held_stage.version is not None
        needed = needed and not set(self.leader.group) <= set(self._reachability.unreachable)
        self._shutdown.asked(reason, self.held_stage.stage, needed, now)
        self._status_reports.leaves(now)

    def _pause(self, reason: str, now: float) -> None:
        """Begin no more microbatches, or resume. Microbatches in progress, reductions and steps are finished."""
        before, self.paused = self.paused, reason[:MAX_PAUSED]
        if self.paused == before:
            return
        self._status_reports.pauses(self.paused, now)
        if not (self.paused and before):
            told = PeerPaused if self.paused else PeerResumed
            self._out.emit(told(str(self.actor), self.held_stage.stage, self.paused or before))
        if not self.paused:
            self._steps.resume()
