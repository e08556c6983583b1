"""The peer's core: it joins, holds a stage at a version, takes part in passes, applies decisions and leaves on request.

Sans-IO: `handle(input, now) -> actions`. The driver computes, stores and transports. `held_stage` is the peer's stage
and version, `pass_run` its share of the open pass, `status_reports` its reports to the coordinator. This file decides
which coordinator the peer obeys, and when one pass ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from swarm.events import LeaderFollowed, OutOfMemory, PeerJoined, PeerPaused, PeerResumed, StepApplied
from swarm.protocol.catch_up_forecast import forecast
from swarm.protocol.ids import Actor, FrameKey, PassId, PassKind, StageIndex, StepNumber
from swarm.protocol.io import RUN_FINISHED, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import (
    MAX_PAUSED,
    Amend,
    Assign,
    Decide,
    Decision,
    Dismiss,
    Disproved,
    Excuse,
    Failed,
    Fenced,
    Frame,
    Halt,
    LeaveSeat,
    Listener,
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
from swarm.protocol.peer.all_reduce import BucketCounts
from swarm.protocol.peer.catch_up import CatchUp
from swarm.protocol.peer.compute_time import ComputeTime
from swarm.protocol.peer.delta_bases import DeltaBases, Visits
from swarm.protocol.peer.early_messages import EarlyMessages
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Assembled,
    BackwardDone,
    BucketSummed,
    CheckpointSaved,
    ComputeFailed,
    Fetched,
    ForwardDone,
    Lend,
    LinksMeasured,
    LoadState,
    MeansChanged,
    MemoryShort,
    OpenSeats,
    PartEncoded,
    PauseChanged,
    PeerAction,
    PeerInput,
    ResultDone,
    SaveCheckpoint,
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
from swarm.protocol.peer.pass_context import PassContext
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.peer.reachability import Reachability
from swarm.protocol.peer.shutdown import Shutdown
from swarm.protocol.peer.state_proofs import StateProofs
from swarm.protocol.peer.status_reports import Saved, StatusReports
from swarm.protocol.residuals import Carry, carry_of
from swarm.protocol.settings import Settings
from swarm.protocol.slots import Slots
from swarm.protocol.timeouts import Observed


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
        self.pass_run: PassRun | None = None
        self._status_reports = StatusReports(actor, settings, saved)
        self._reachability = Reachability(settings.reconnect_grace_s)
        self._pace = ComputeTime()
        self._slots = Slots(settings)
        self._waits = Observed()
        self._out = Outbox(actor)
        self._early = EarlyMessages()
        self._catch_up = CatchUp(actor, settings, self.held_stage, self._out)
        self._proofs = StateProofs(self.held_stage, self._out)
        self._lent_at = -3
        """The newest version at which a pass had listeners of this stage."""
        self._begun: PassId | None = None
        self._opening: Open | None = None
        """The Open of a pass that this peer begins once it has applied the previous step."""
        self._applying: Decision | None = None
        self._saving: tuple[StageIndex, int, float] | None = None
        """(stage, version, time in seconds) of the last checkpoint that was ordered."""
        self._to_save = -1
        """The newest version to save although the manifest's schedule does not contain it."""
        self._proven = 0
        """The newest version held here that is known to be sound (swarm/protocol/soundness.py)."""
        self._bases = DeltaBases(visits, settings.steps, base_capacity)
        self._carry: Carry | None = None
        """The residuals that the last applied step left, in a run that averages compressed gradients."""
        self._shortages = 0
        self.short = ""
        """The reason why this peer leaves: it has run out of memory twice. Empty: it has not."""
        self.paused = ""
        """The reason why this peer begins no microbatches at present. Empty: it begins them."""
        self.finished = False
        """True if all steps of the run are decided and this peer knows it."""
        self._shutdown = Shutdown(actor, self.leader.group, settings.leave_s, self._out)

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
                if self.held_stage.loaded(event):
                    reason = f"holds version {event.version}"
                    self._out.emit(PeerJoined(str(self.actor), event.stage, reason))
                    self._proofs.reached(self.coordinator)
            case SumsFetched():
                self._catch_up.fetched(event)
            case SumsMissing():
                if self._catch_up.missing(event):
                    self._start_again(event.reason)
            case Fetched(nbytes):
                self._status_reports.fetched(nbytes)
            case ForwardDone() | BackwardDone() | WeightsDone() | ResultDone() | ComputeFailed():
                self._measure(event)
                if self.pass_run is not None and event.pass_id == self.pass_run.pass_id:
                    self.pass_run.on_computed(event, now)
                if isinstance(event, ComputeFailed):
                    self._on_failed(event)
            case MemoryShort():
                self._on_memory_short(event, now)
            case PartEncoded() | BucketSummed() | Assembled():
                if isinstance(event, Assembled):
                    self._on_restored(event)
                if self.pass_run is not None:
                    self.pass_run.on_reduced(event)
            case AppliedStep(step, digest):
                self._on_applied(step, digest, now)
            case CheckpointSaved(version, digest):
                if self._saving is not None and self._saving[1] == version:
                    self._status_reports.saved(Saved(self._saving[0], version, digest))
            case StateSpoilt(version):
                if self.held_stage.version == version:
                    self._status_reports.spoilt(version, now)
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
        self._deadlines(now)
        if not self._shutdown.gone:
            self._advance()
            self._report(now)
        return cast(list[PeerAction], self._out.take())

    def _report(self, now: float) -> None:
        """Send a report if one is due: to all coordinators at a heartbeat, since each may become the leader, otherwise
        only to the leader.
        """
        beat = now >= self._status_reports.next_at
        if (
            report := self._status_reports.report(self.held_stage, self.pass_run, self._catch_up, self._pace, now)
        ) is not None:
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

    # ------------------------------------------------------------ from the coordinator

    def _on_message(self, sender: Actor, message: Message, now: float) -> None:
        match message:
            case Relay(origin, destination, inner):
                self._on_relay(sender, origin, destination, inner, now)
            case Want() | Pending() | Frame() | ReducePart() | ReducedPart():
                self._on_data(sender, message, None, now)
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
            self._opening = None
            self._status_reports.again(now)
        return True

    def _on_control(self, sender: Actor, message: Control, now: float) -> None:
        match message:
            case Assign():
                self._on_assign(message)
            case Open():
                self._on_open(message, now)
            case Amend(pass_id, stage, table, reason):
                if (pass_run := self._stint_of(pass_id, sender, message)) is not None:
                    pass_run.amend([(stage, table)], reason, now)
            case Release(pass_id, number, microbatches):
                if (pass_run := self._stint_of(pass_id, sender, message)) is not None:
                    pass_run.microbatches.release(number, microbatches)
            case Fenced(pass_id, reason):
                if (pass_run := self._stint_of(pass_id, sender, message)) is not None:
                    pass_run.fence(reason)
            case Decide(term=term) if term < self.held_stage.term:
                pass  # sent before the current state was ordered: a rollback may have voided it
            case Decide(decision=decision, finished=finished, save=save):
                self.finished = self.finished or finished
                if save:
                    self._to_save = max(self._to_save, decision.step + 1)
                self._apply_if_prepared(decision)
                self._catch_up.decided(decision)
                if finished and self._applying is None:
                    self._out.add(Stop(RUN_FINISHED))
                elif not finished:
                    self._save_if_due(now)
            case Halt(reason):
                self._out.add(Stop(reason, failed=True))
            case Dismiss(reason=reason):
                self._shutdown.dismissed(reason)

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
                self._proofs.asked(message, self.coordinator, applying=self._applying is not None)
            case Disproved(nonce=nonce) if self._applying is None and self.pass_run is None:
                if self._proofs.is_wrong(nonce, self.coordinator):
                    self._start_again("its siblings hold another state")

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
        if self.paused or self.pass_run is None:
            return
        heard = self._catch_up.heard
        if heard is not None and self.pass_run.pass_id < heard:
            self._leave_pass()  # the pass was given up, or was decided without this peer, which listens to a later one
        else:
            self.pass_run.microbatches.resume()

    def _measure(self, event: ForwardDone | BackwardDone | WeightsDone | ResultDone | ComputeFailed) -> None:
        """Record how long a computation took, even if its result is void. Passes without gradients do not count."""
        match event:
            case ForwardDone(PassId(index=0), seconds=seconds):
                self._pace.forward(seconds)
            case BackwardDone(weights_due=True, microbatch=m, seconds=seconds):
                self._pace.half_backward(m, seconds)
            case BackwardDone(seconds=seconds):
                self._pace.backward(seconds)
            case WeightsDone(microbatch=m, seconds=seconds):
                self._pace.other_half(m, seconds)
            case _:
                pass

    def _stint_of(self, pass_id: PassId, sender: Actor, message: Message) -> PassRun | None:
        """Return the pass run if `pass_id` is the open pass. Otherwise return None, and keep the message if its pass
        opens later.
        """
        if self.pass_run is not None and pass_id == self.pass_run.pass_id:
            return self.pass_run
        if self.pass_run is None or pass_id > self.pass_run.pass_id:
            self._early.keep(sender, message)
        return None

    def _on_assign(self, assign: Assign) -> None:
        load = self.held_stage.assigned(assign)
        if load is None:
            return
        self._take_up(load)

    def _take_up(self, load: LoadState) -> None:
        """Load a state, and drop all work that is based on the previous state."""
        self._leave_pass()
        self._bases.clear()
        self._catch_up.clear()
        self._proofs.clear()
        self._carry = None
        self._applying = None
        self._opening = None
        self._status_reports.takes_up(load.version)
        self._proven = min(self._proven, load.version)
        if self._saving is not None and self._saving[1] > load.version:
            self._saving = None
        if self._to_save > load.version:
            self._to_save = -1
        self._out.add(load)

    # ------------------------------------------------------------ from other peers

    def _on_relay(self, sender: Actor, origin: Actor, destination: Actor, inner: Message, now: float) -> None:
        if not self._takes_part(sender):
            return
        if destination == self.actor:
            microbatches = self.pass_run.microbatches if self.pass_run is not None else None
            if microbatches is not None and isinstance(inner, Frame) and microbatches.overdue(origin):
                microbatches.report_unreachable(origin, sender, "answers only through a sibling")
            self._on_data(origin, inner, sender, now)
        elif sender == origin and self.pass_run is not None and self.pass_run.serves(destination):
            self._out.add(Send(destination, Relay(origin, destination, inner)))  # type: ignore[arg-type]

    def _takes_part(self, actor: Actor) -> bool:
        """True if an actor has a part in the open pass. Other actors pass the handshake, but their data are refused."""
        if self.pass_run is None:
            return actor == self.coordinator
        return actor == self.pass_run.microbatches.coordinator or self.pass_run.serves(actor)

    def _on_data(self, sender: Actor, message: Message, via: Actor | None, now: float) -> None:
        match message:
            case Frame(key) if sender == self.coordinator:  # the first tokens come without a Want
                if (pass_run := self._stint_of(key.pass_id, sender, message)) is not None:
                    pass_run.microbatches.on_frame(sender, message, now)
            case Frame(key):  # answers a Want of this peer, so the pass is open here
                if self.pass_run is not None and key.pass_id == self.pass_run.pass_id and self._takes_part(sender):
                    self.pass_run.microbatches.on_frame(sender, message, now)
            case Pending(keys):
                if self.pass_run is not None:
                    self.pass_run.microbatches.on_pending(sender, keys, now)
            case Want():
                self._on_want(sender, message, via)
            case ReducePart(key) if sender == key.contributor:
                if (pass_run := self._stint_of(key.attempt.pass_id, sender, message)) is not None:
                    pass_run.on_part(message)
            case ReducedPart():
                if self.pass_run is not None:
                    self.pass_run.on_sum(sender, message)
            case _:
                pass

    def _on_want(self, sender: Actor, want: Want, via: Actor | None) -> None:
        pending: list[FrameKey] = []
        for index, key in enumerate(want.keys):
            base = want.base(index)
            pass_run = self.pass_run
            if isinstance(key, FrameKey):  # a credit, which may arrive before the pass opens
                pass_run = self._stint_of(key.pass_id, sender, Want((key,), (base,), want.again))
            if pass_run is not None and self._takes_part(sender) and pass_run.on_want(sender, key, via, base):
                assert isinstance(key, FrameKey)
                pending.append(key)
        if pending and want.again and via is None:  # a relayed Want would not prove that the link works
            self._out.send(sender, Pending(tuple(pending)))

    # ------------------------------------------------------------ from pass to pass

    def _on_open(self, message: Open, now: float) -> None:
        pass_id, held_stage = message.pass_id, self.held_stage
        if pass_id.term < held_stage.term or len(message.tables) != self.settings.stages:
            return
        if message.save:
            self._to_save = max(self._to_save, pass_id.version)
        self._bases.steps = message.steps or self.settings.steps
        mine = next((each for each in message.listeners if each.actor == self.actor), None)
        if mine is not None:
            self._on_listen(message, mine)
            return
        if held_stage.stage is None:
            return
        held_stage.term = pass_id.term
        if self.pass_run is not None and pass_id <= self.pass_run.pass_id:
            if pass_id == self.pass_run.pass_id:
                self._lend(message)
                self.pass_run.amend(enumerate(message.tables), "told again", now)
            return
        if self._begun is not None and pass_id <= self._begun:
            return  # a late repetition: this peer has left that pass, perhaps because it lost the state
        self._opening = message
        if message.decision is not None:
            self._apply_if_prepared(message.decision)
        if self._applying is None and held_stage.stands(message.rolled_back_in):
            held_stage.begun(pass_id)
            self._catch_up.told(message)
        if message.save and not self._catch_up.behind:
            self._save_if_due(now)
        self._begin_if_ready(now)

    def _on_listen(self, message: Open, mine: Listener) -> None:
        """Listen to a pass without work in it. Meanwhile load the stage, or catch up with missed steps."""
        pass_id, heard = message.pass_id, self._catch_up.heard
        if (heard is not None and pass_id < heard) or (self._begun is not None and pass_id < self._begun):
            return
        if not 0 <= mine.stage < self.settings.stages:
            return
        if self._opening is not None and self._opening.pass_id <= pass_id:
            self._opening = None  # this peer was fenced before it began the pass
        if self.pass_run is not None and pass_id == self.pass_run.pass_id:
            if message.tables[mine.stage].number < self.pass_run.microbatches.numbers[mine.stage]:
                return  # sent before this peer was admitted to the pass
            self.pass_run.fence("it listens now")  # the other peers know it; the message to this peer was lost
        if message.decision is not None:
            self._apply_if_prepared(message.decision)
        if self._applying is not None:
            return  # the coordinator repeats the order until the peer reports that it has received it
        self._catch_up.heard = pass_id
        donors = () if mine.version == 0 and not self.settings.imported else message.donors
        void_before = max(message.rolled_back_in, mine.void_before)
        load = self.held_stage.listens(mine, pass_id.term, void_before, donors)
        if load is not None:
            self._take_up(load)
            told = forecast(self.actor, mine.stage, self.settings, self._status_reports.means.downlink, message.step_s)
            if told is not None:
                self._out.emit(told)
        self._catch_up.told(message)

    def _lend(self, message: Open) -> None:
        """Keep the data that the listeners of this stage need and cannot get later."""
        pass_id, stage = message.pass_id, self.held_stage.stage
        those = [each for each in message.listeners if each.stage == stage]
        if those:
            self._lent_at = pass_id.version
        elif pass_id.version > self._lent_at + 2:
            return
        versions = {each.version for each in those if each.loads}
        if self._applying is not None:
            versions.discard(pass_id.version)  # too late for a copy
        since = min((each.version for each in those), default=pass_id.version)
        since = min(since, pass_id.version - 1)  # an actor that has just joined the roster may lack the previous step
        self._out.add(Lend(pass_id, tuple(sorted(versions)), since, sums=bool(those)))

    def _begin_if_ready(self, now: float) -> None:
        message, stage = self._opening, self.held_stage.stage
        if message is None or self._applying is not None or self.held_stage.loading is not None or stage is None:
            return
        if self._catch_up.behind:
            return  # the step will be applied as soon as its sums are here
        self._opening = None
        if self.held_stage.version != message.pass_id.version:
            reason = f"holds version {self.held_stage.version}, but the pass needs {message.pass_id.version}"
            self._out.send(self.coordinator, Failed(message.pass_id, None, reason))
            return
        try:
            carry = carry_of(self.actor, message.tables[stage], message.pass_id, self._carry)
        except LookupError as error:
            self._out.send(self.coordinator, Failed(message.pass_id, None, str(error)))
            return
        self._leave_pass()
        self.held_stage.begun(message.pass_id)
        self._begun = message.pass_id
        training = message.kind is PassKind.TRAIN
        self._pace.new_pass(stage)
        held, is_up = self.held_stage, self._reachability.is_up
        context = PassContext(
            self.actor,
            self.coordinator,
            self.settings,
            self._slots,
            self._waits,
            is_up,
            self._out,
            is_paused=lambda: bool(self.paused),
        )
        self.pass_run = PassRun(
            context,
            stage,
            BucketCounts(held.buckets, held.first_round, held.shared),
            message,
            carry=carry,
            crossings=self._bases.crossings(message.pass_id.step) if training else Crossings(),
            unreachable=self._reachability.unreachable,
            now=now,
        )
        self._lend(message)
        for sender, kept in self._early.take():
            self._on_message(sender, kept, now)
        self.pass_run.reduce_if_sealed(now)

    def _leave_pass(self) -> None:
        if self.pass_run is not None:
            self.pass_run.leave()
            self.pass_run = None

    def _advance(self) -> None:
        if self._applying is None and (order := self._catch_up.advance()) is not None:
            self._leave_pass()
            self._out.add(order)

    def _on_restored(self, event: Assembled) -> None:
        """The buffer now holds the sums of a step that was decided without this peer."""
        if self._applying is not None or self.held_stage.version != event.attempt.pass_id.step:
            return
        order = self._catch_up.restored(event)
        if order is not None:
            self._applying = order.decision
            self._out.add(order)
        elif reason := self._catch_up.spoilt():
            self._start_again(reason)

    def _on_failed(self, event: ComputeFailed) -> None:
        """An optimizer step failed, so that the state mixes two versions; or sums could not be read."""
        applying = self._applying
        if applying is not None and event.pass_id == PassId(applying.term, applying.step):
            self._applying = None
            self._catch_up.clear()
            self._proofs.clear()
            self.held_stage.spoilt()
        elif applying is None:
            self._catch_up.failed(event)
            if reason := self._catch_up.spoilt():
                self._start_again(reason)

    def _on_memory_short(self, event: MemoryShort, now: float) -> None:
        """Memory ran out. The first time, keep less. The second time, leave, since each failure delays the other
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

    def _start_again(self, reason: str) -> None:
        """Drop the state that is held or loaded, because nothing can be computed from it. The next pass orders to load
        a new one.
        """
        opening, self._opening = self._opening, None
        self._proofs.clear()
        self.held_stage.spoilt()
        if opening is not None:
            self._out.send(self.coordinator, Failed(opening.pass_id, None, f"cannot catch up: {reason}"))

    def _apply_if_prepared(self, decision: Decision) -> None:
        prepared = self.pass_run.prepared if self.pass_run is not None else None
        held_stage = self.held_stage
        if (
            prepared is None
            or self._applying is not None
            or held_stage.version != decision.step
            or held_stage.stage is None
        ):
            return
        outcome, attempt = decision.outcomes[held_stage.stage], prepared.attempt
        if (
            attempt.pass_id.step != decision.step
            or attempt.number != outcome.number
            or prepared.digest != outcome.digest
        ):
            return
        self._applying = decision
        self._out.add(Apply(decision, attempt))

    def _on_applied(self, step: StepNumber, digest: str, now: float) -> None:
        if self._applying is None or self._applying.step != step:
            return
        self._carry = None
        if self.pass_run is not None and self.settings.averages_compressed:
            self._carry = Carry.of(self.actor, self.pass_run.microbatches.table, self._applying)
        # do not build on a step that is not finite, or that other peers computed
        known = self.pass_run is not None and not self._applying.skip
        if not self._applying.skip:
            self._proven = max(self._proven, self._applying.step)
        crossings = self.pass_run.microbatches.crossings if self.pass_run is not None and known else Crossings()
        self._applying = None
        self.held_stage.applied(step)
        self._proofs.reached(self.coordinator)
        self._catch_up.applied(step)
        if (settled := self._bases.settle(step, crossings)) is not None:
            self._out.add(settled)
        self._leave_pass()
        self._out.emit(StepApplied(step, digest))
        if not self._catch_up.behind:
            self._save_if_due(now)
        if self.finished:
            self._out.add(Stop(RUN_FINISHED))
        self._begin_if_ready(now)

    def _save_if_due(self, now: float) -> None:
        """Save the held version if it is to be a checkpoint. Repeat the order if the last one had no result."""
        stage, version = self.held_stage.stage, self.held_stage.version
        if stage is None or version is None or self._applying is not None:
            return
        if not self.settings.saves(version) and version != self._to_save:
            return
        if self._status_reports.newest_saved(stage) >= version:
            return
        before = self._saving
        if before is not None and before[:2] == (stage, version) and now - before[2] < self.settings.step_budget_s:
            return
        self._saving = (stage, version, now)
        self._out.add(SaveCheckpoint(version, self._proven))
