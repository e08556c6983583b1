"""The peer's core: joins, holds a stage at a version, takes part in passes, applies decisions, gets out of the way.

Sans-IO: `handle(input, now) -> actions`. The driver computes, stores and transports. What it holds is in `holding`, its
share in the pass that is open in `stint`, what it says of itself in `reporter`; here is who is listened to, and when
one pass ends and the next begins.
"""

from __future__ import annotations

from typing import cast

from swarm.events import LeaderFollowed, PeerJoined, StepApplied
from swarm.protocol.actions import (
    AppliedStep,
    Apply,
    Assembled,
    BackwardDone,
    BucketSummed,
    CheckpointSaved,
    ComputeFailed,
    ForwardDone,
    LeaveRequested,
    LinkLost,
    LinksMeasured,
    LinkUp,
    PartEncoded,
    PeerAction,
    PeerInput,
    Received,
    ResultDone,
    SaveCheckpoint,
    Send,
    StateFailed,
    StateLoaded,
    Stop,
    Tick,
)
from swarm.protocol.allegiance import Allegiance, Control
from swarm.protocol.bases import Bases, Visits
from swarm.protocol.crossings import Crossings
from swarm.protocol.deadlines import Observed
from swarm.protocol.early import Early
from swarm.protocol.farewell import Farewell
from swarm.protocol.holding import Holding
from swarm.protocol.ids import Actor, FrameKey, PassId, PassKind, StageIndex, StepNumber
from swarm.protocol.messages import (
    Amend,
    Assign,
    Decide,
    Decision,
    Dismiss,
    Failed,
    Fenced,
    Frame,
    Halt,
    Message,
    Open,
    ReducedPart,
    ReducePart,
    Relay,
    Release,
    Want,
)
from swarm.protocol.outbox import Outbox
from swarm.protocol.pace import Pace
from swarm.protocol.reach import Reach
from swarm.protocol.reporter import Reporter, Saved
from swarm.protocol.residuals import Carry, carry_of
from swarm.protocol.settings import Settings
from swarm.protocol.stint import Stint


class PeerCore:
    """One incarnation of one peer."""

    def __init__(
        self,
        actor: Actor,
        coordinator: Actor,
        settings: Settings,
        capacity: float = 1.0,
        saved: Saved | None = None,
        visits: Visits | None = None,
        base_capacity: int = 0,
        group: tuple[Actor, ...] = (),
    ) -> None:
        """`coordinator`: the one to begin with, of `group` if there are several. `visits`: given if the codec builds on
        earlier visits. `saved`: the newest checkpoint on this machine's disk.

        `base_capacity`: how many reconstructions of earlier visits this machine has room for.
        """
        self.actor = actor
        self.allegiance = Allegiance(coordinator, group)
        self.settings = settings
        self.holding = Holding()
        self.stint: Stint | None = None
        self._reporter = Reporter(actor, settings, capacity, saved)
        self._reach = Reach(settings.reconnect_grace_s)
        self._pace = Pace()
        self._waits = Observed()
        self._out = Outbox(actor)
        self._early = Early()
        self._begun: PassId | None = None
        self._opening: Open | None = None
        """A pass that opens here as soon as the step before is applied."""
        self._applying: Decision | None = None
        self._saving: tuple[StageIndex, int, float] | None = None
        """(stage, version, when) of the last checkpoint that was ordered."""
        self._bases = Bases(visits, settings.steps, base_capacity)
        self._carry: Carry | None = None
        """The residuals of the last step applied, in a run that averages compressed gradients."""
        self._finished = False
        self._farewell = Farewell(actor, self.allegiance.group, settings.leave_s, self._out)

    @property
    def coordinator(self) -> Actor:
        """Whom this peer obeys."""
        return self.allegiance.leader

    # ------------------------------------------------------------ entry

    def handle(self, event: PeerInput, now: float) -> list[PeerAction]:
        match event:
            case Received(sender, message):
                self._on_message(sender, message, now)
            case LinkLost(other):
                self._reach.lost(other, now)
            case LinkUp(other):
                self._on_link_up(other, now)
            case Tick():
                pass
            case StateLoaded() | StateFailed():
                if self.holding.loaded(event):
                    reason = f"holds version {event.version}"
                    self._out.emit(PeerJoined(str(self.actor), event.stage, reason))
            case ForwardDone() | BackwardDone() | ResultDone() | ComputeFailed():
                if self.stint is not None and event.pass_id == self.stint.pass_id:
                    self.stint.on_computed(event, now)
                    if isinstance(event, ComputeFailed) and self._applying is not None:
                        self._applying = None
                        self.holding.spoilt()
            case PartEncoded() | BucketSummed() | Assembled():
                if self.stint is not None:
                    self.stint.on_reduced(event)
            case AppliedStep(step, digest):
                self._on_applied(step, digest, now)
            case CheckpointSaved(version, digest):
                if self._saving is not None and self._saving[1] == version:
                    self._reporter.saved(Saved(self._saving[0], version, digest))
            case LinksMeasured():
                self._reporter.measured(event)
            case LeaveRequested(reason):
                needed = self.stint is not None or self.holding.version is not None
                needed = needed and not set(self.allegiance.group) <= set(self._reach.unreachable)
                self._farewell.asked(reason, self.holding.stage, needed, now)
                self._reporter.leaves(now)
        self._deadlines(now)
        if not self._farewell.gone:
            self._report(now)
        return cast(list[PeerAction], self._out.take())

    def _report(self, now: float) -> None:
        """Every heartbeat to all coordinators, since any may be the next to lead; between them to the one that does."""
        beat = now >= self._reporter.next_at
        if (report := self._reporter.report(self.holding, self.stint, self._pace, now)) is not None:
            for coordinator in self.allegiance.group if beat else (self.coordinator,):
                self._out.send(coordinator, report)

    def next_wakeup(self) -> float:
        due = [self._reporter.next_at, *self._reach.deadlines()]
        if self.stint is not None:
            due += self.stint.deadlines()
        return min(due + self._farewell.deadlines())

    def _deadlines(self, now: float) -> None:
        for other in self._reach.given_up(now):
            if self.stint is not None:
                self.stint.go_around(other, now)
            if self.allegiance.group == (other,):  # of several, another one may soon lead
                self._farewell.abandoned()
        if self.stint is not None:
            self.stint.tick(now)
        self._farewell.tick(now)

    def _on_link_up(self, other: Actor, now: float) -> None:
        self._out.routes.pop(other, None)
        if not self._reach.up(other):
            return
        if self.allegiance.includes(other):
            self._reporter.again(now)
        if self.stint is not None:
            self.stint.reconnected(other, now)

    # ------------------------------------------------------------ from the coordinator

    def _on_message(self, sender: Actor, message: Message, now: float) -> None:
        match message:
            case Relay(origin, destination, inner):
                self._on_relay(sender, origin, destination, inner, now)
            case Want() | Frame() | ReducePart() | ReducedPart():
                self._on_data(sender, message, None, now)
            case Assign() | Open() | Amend() | Release() | Fenced() | Decide() | Dismiss() | Halt():
                if self._obeys(sender, message, now):
                    self._on_control(sender, message, now)
            case _:
                pass

    def _obeys(self, sender: Actor, message: Control, now: float) -> bool:
        """Whether an order counts. A new leader is told at once how things stand here."""
        before = self.coordinator
        if not self.allegiance.obeys(sender, message):
            return False
        if sender != before:
            self._out.emit(LeaderFollowed(str(sender), self.allegiance.term))
            self._opening = None
            self._reporter.again(now)
        return True

    def _on_control(self, sender: Actor, message: Control, now: float) -> None:
        match message:
            case Assign():
                self._on_assign(message)
            case Open():
                self._on_open(message, now)
            case Amend(pass_id, stage, table, reason):
                if (stint := self._stint_of(pass_id, sender, message)) is not None:
                    stint.amend([(stage, table)], reason, now)
            case Release(pass_id, number, microbatches):
                if (stint := self._stint_of(pass_id, sender, message)) is not None:
                    stint.walk.release(number, microbatches)
            case Fenced(pass_id, reason):
                if (stint := self._stint_of(pass_id, sender, message)) is not None:
                    stint.fence(reason)
            case Decide(decision=decision, finished=finished):
                self._finished = self._finished or finished
                self._apply_if_prepared(decision)
                if finished and self._applying is None:
                    self._out.add(Stop("the run is finished"))
                elif not finished:
                    self._save_if_due(now)
            case Halt(reason):
                self._out.add(Stop(reason, failed=True))
            case Dismiss(reason=reason):
                self._farewell.dismissed(reason)

    def _stint_of(self, pass_id: PassId, sender: Actor, message: Message) -> Stint | None:
        """The stint if `pass_id` is the open pass here; messages of a later one are kept until it opens."""
        if self.stint is not None and pass_id == self.stint.pass_id:
            return self.stint
        if self.stint is None or pass_id > self.stint.pass_id:
            self._early.keep(sender, message)
        return None

    def _on_assign(self, assign: Assign) -> None:
        load = self.holding.assigned(assign)
        if load is None:
            return
        self._leave_pass()
        self._bases.clear()
        self._carry = None
        self._applying = None
        self._opening = None
        self._reporter.takes_up(load.version)
        if self._saving is not None and self._saving[1] > load.version:
            self._saving = None
        self._out.add(load)

    # ------------------------------------------------------------ from other peers

    def _on_relay(self, sender: Actor, origin: Actor, destination: Actor, inner: Message, now: float) -> None:
        if not self._takes_part(sender):
            return
        if destination == self.actor:
            walk = self.stint.walk if self.stint is not None else None
            if walk is not None and isinstance(inner, Frame) and walk.overdue(origin):
                walk.report_unreachable(origin, sender, "answers only through a sibling")
            self._on_data(origin, inner, sender, now)
        elif sender == origin and self.stint is not None and self.stint.serves(destination):
            self._out.add(Send(destination, Relay(origin, destination, inner)))  # type: ignore[arg-type]

    def _takes_part(self, actor: Actor) -> bool:
        """Whether an actor has a part in the open pass. Others pass the handshake too, but no data is taken of them."""
        if self.stint is None:
            return actor == self.coordinator
        return actor == self.stint.walk.coordinator or self.stint.serves(actor)

    def _on_data(self, sender: Actor, message: Message, via: Actor | None, now: float) -> None:
        match message:
            case Frame(key):  # comes after a Want of mine, so never before the pass is open here
                if self.stint is not None and key.pass_id == self.stint.pass_id and self._takes_part(sender):
                    self.stint.walk.on_frame(sender, message, now)
            case Want(keys):
                for index, wanted in enumerate(keys):
                    base = message.base(index)
                    stint = self.stint
                    if isinstance(wanted, FrameKey):  # a credit, which may come ahead of the pass
                        stint = self._stint_of(wanted.pass_id, sender, Want((wanted,), (base,)))
                    if stint is not None and self._takes_part(sender):
                        stint.on_want(sender, wanted, via, base)
            case ReducePart(key) if sender == key.contributor:
                if (stint := self._stint_of(key.attempt.pass_id, sender, message)) is not None:
                    stint.on_part(message)
            case ReducedPart():
                if self.stint is not None:
                    self.stint.on_sum(sender, message)
            case _:
                pass

    # ------------------------------------------------------------ from pass to pass

    def _on_open(self, message: Open, now: float) -> None:
        pass_id, holding = message.pass_id, self.holding
        if pass_id.term < holding.term or holding.stage is None or len(message.tables) != self.settings.stages:
            return
        holding.term = pass_id.term
        if self.stint is not None and pass_id <= self.stint.pass_id:
            if pass_id == self.stint.pass_id:
                self.stint.amend(enumerate(message.tables), "told again", now)
            return
        if self._begun is not None and pass_id <= self._begun:
            return  # a late repeat of a pass that was left, perhaps with the state
        self._opening = message
        if message.decision is not None:
            self._apply_if_prepared(message.decision)
        self._begin_if_ready(now)

    def _begin_if_ready(self, now: float) -> None:
        message, stage = self._opening, self.holding.stage
        if message is None or self._applying is not None or self.holding.loading or stage is None:
            return
        self._opening = None
        if self.holding.version != message.pass_id.version:
            reason = f"holds version {self.holding.version}, the pass needs {message.pass_id.version}"
            self._out.send(self.coordinator, Failed(message.pass_id, None, reason))
            return
        try:
            carry = carry_of(self.actor, message.tables[stage], message.pass_id, self._carry)
        except LookupError as error:
            self._out.send(self.coordinator, Failed(message.pass_id, None, str(error)))
            return
        self._leave_pass()
        self.holding.begun(message.pass_id)
        self._begun = message.pass_id
        training = message.kind is PassKind.TRAIN
        self.stint = Stint(
            me=self.actor,
            coordinator=self.coordinator,
            settings=self.settings,
            stage=stage,
            buckets=self.holding.buckets,
            first_round=self.holding.first_round,
            shared=self.holding.shared,
            opening=message,
            carry=carry,
            crossings=self._bases.crossings(message.pass_id.step) if training else Crossings(),
            unreachable=self._reach.unreachable,
            pace=self._pace,
            waits=self._waits,
            out=self._out,
            now=now,
        )
        for sender, kept in self._early.take():
            self._on_message(sender, kept, now)
        self.stint.reduce_if_sealed(now)

    def _leave_pass(self) -> None:
        if self.stint is not None:
            self.stint.leave()
            self.stint = None

    def _apply_if_prepared(self, decision: Decision) -> None:
        prepared = self.stint.prepared if self.stint is not None else None
        holding = self.holding
        if prepared is None or self._applying is not None or holding.version != decision.step or holding.stage is None:
            return
        outcome, attempt = decision.outcomes[holding.stage], prepared.attempt
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
        if self.stint is not None and self.settings.averages_compressed:
            self._carry = Carry.of(self.actor, self.stint.walk.table, self._applying)
        skipped = self._applying.skip
        self._applying = None
        self.holding.applied(step)
        if self.stint is not None:
            crossings = Crossings() if skipped else self.stint.walk.crossings  # nothing builds on what is not finite
            if (settled := self._bases.settle(step, crossings)) is not None:
                self._out.add(settled)
        self._leave_pass()
        self._out.emit(StepApplied(step, digest))
        self._save_if_due(now)
        if self._finished:
            self._out.add(Stop("the run is finished"))
        self._begin_if_ready(now)

    def _save_if_due(self, now: float) -> None:
        """Save the version held now if it is to be a checkpoint; again, if the last order came to nothing for long."""
        stage, version = self.holding.stage, self.holding.version
        if stage is None or version is None or self._applying is not None or not self.settings.saves(version):
            return
        if self._reporter.newest_saved(stage) >= version:
            return
        before = self._saving
        if before is not None and before[:2] == (stage, version) and now - before[2] < self.settings.step_budget_s:
            return
        self._saving = (stage, version, now)
        self._out.add(SaveCheckpoint(version))
