"""The cycle of a peer's steps: it begins passes, applies decisions, catches up with steps that were decided without it,
and takes up another state when ordered to.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.events import StepApplied
from swarm.protocol.catch_up_forecast import forecast
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber
from swarm.protocol.io import RUN_FINISHED, Stop
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import Assign, Decide, Decision, Failed, Listener, Open
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.all_reduce import BucketCounts
from swarm.protocol.peer.catch_up import CatchUp
from swarm.protocol.peer.checkpoint_saves import CheckpointSaves
from swarm.protocol.peer.compute_time import ComputeTime
from swarm.protocol.peer.delta_bases import DeltaBases
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.indirect_siblings import IndirectSiblings
from swarm.protocol.peer.io import Apply, Assembled, ComputeFailed, LoadState, SumsMissing
from swarm.protocol.peer.leader import Leader
from swarm.protocol.peer.lend_orders import LendOrders
from swarm.protocol.peer.pass_context import PassContext
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.peer.reachability import Reachability
from swarm.protocol.peer.state_proofs import StateProofs
from swarm.protocol.peer.status_reports import StatusReports
from swarm.protocol.residuals import Carry, carry_of
from swarm.protocol.settings import Settings
from swarm.protocol.slots import Slots
from swarm.protocol.timeouts import Observed


class StepCycle:
    """Owns the open pass and the step that is being applied. Call `advance` after every input.

    `open` and `applied` return True if a pass has begun: then the messages that arrived too early for it are due.
    """

    def __init__(
        self,
        me: Actor,
        settings: Settings,
        leader: Leader,
        held_stage: HeldStage,
        status_reports: StatusReports,
        reachability: Reachability,
        proofs: StateProofs,
        bases: DeltaBases,
        is_paused: Callable[[], bool],
        out: Outbox,
    ) -> None:
        self.pass_run: PassRun | None = None
        self.finished = False
        """True if all steps of the run are decided and this peer knows it."""
        self.catch_up = CatchUp(me, settings, held_stage, out)
        self.saves = CheckpointSaves(settings, held_stage, status_reports, out)
        self.pace = ComputeTime()
        self._me = me
        self._settings = settings
        self._leader = leader
        self._held_stage = held_stage
        self._status_reports = status_reports
        self._reachability = reachability
        self._proofs = proofs
        self._bases = bases
        self._is_paused = is_paused
        self._out = out
        self._lend_orders = LendOrders(held_stage, out)
        self._slots = Slots(settings)
        self._waits = Observed()
        self._pauses = Observed()
        self._indirect = IndirectSiblings()
        self._begun: PassId | None = None
        self._opening: Open | None = None
        """The Open of a pass that this peer begins once it has applied the previous step."""
        self._applying: Decision | None = None
        self._carry: Carry | None = None
        """The residuals that the last applied step left, in a run that averages compressed gradients."""

    @property
    def is_applying(self) -> bool:
        """True while a step is being applied, so that the held version is about to change."""
        return self._applying is not None

    # ------------------------------------------------------------ passes

    def open(self, message: Open, now: float) -> bool:
        """A pass opens, or its opening is repeated. Return True if it has begun here."""
        pass_id, held_stage = message.pass_id, self._held_stage
        if pass_id.term < held_stage.term or len(message.tables) != self._settings.stages:
            return False
        if message.save:
            self.saves.ask_for(pass_id.version)
        self._bases.steps = message.steps or self._settings.steps
        mine = next((each for each in message.listeners if each.actor == self._me), None)
        if mine is not None:
            self._listen(message, mine)
            return False
        if held_stage.stage is None:
            return False
        held_stage.term = pass_id.term
        if self.pass_run is not None and pass_id <= self.pass_run.pass_id:
            if pass_id == self.pass_run.pass_id:
                self._lend_orders.lend(message, self.is_applying)
                self.pass_run.amend(enumerate(message.tables), "told again", now)
            return False
        if self._begun is not None and pass_id <= self._begun:
            return False  # a late repetition: this peer has left that pass, perhaps because it lost the state
        self._opening = message
        if message.decision is not None:
            self._apply_if_prepared(message.decision)
        if self._applying is None and held_stage.stands(message.rolled_back_in):
            held_stage.begun(pass_id)
            self.catch_up.told(message)
        if message.save and not self.catch_up.behind:
            self._save_if_due(now)
        return self._begin_if_ready(now)

    def _listen(self, message: Open, mine: Listener) -> None:
        """Listen to a pass without work in it. Meanwhile load the stage, or catch up with missed steps."""
        pass_id, heard = message.pass_id, self.catch_up.heard
        if (heard is not None and pass_id < heard) or (self._begun is not None and pass_id < self._begun):
            return
        if not 0 <= mine.stage < self._settings.stages:
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
        self.catch_up.heard = pass_id
        donors = () if mine.version == 0 and not self._settings.imported else message.donors
        void_before = max(message.rolled_back_in, mine.void_before)
        load = self._held_stage.listens(mine, pass_id.term, void_before, donors)
        if load is not None:
            self._take_up(load)
            told = forecast(self._me, mine.stage, self._settings, self._status_reports.means.downlink, message.step_s)
            if told is not None:
                self._out.emit(told)
        self.catch_up.told(message)

    def _begin_if_ready(self, now: float) -> bool:
        message, stage = self._opening, self._held_stage.stage
        if message is None or self._applying is not None or self._held_stage.loading is not None or stage is None:
            return False
        if self.catch_up.behind:
            return False  # the step will be applied as soon as its sums are here
        self._opening = None
        if self._held_stage.version != message.pass_id.version:
            reason = f"holds version {self._held_stage.version}, but the pass needs {message.pass_id.version}"
            self._out.send(self._leader.actor, Failed(message.pass_id, None, reason))
            return False
        try:
            carry = carry_of(self._me, message.tables[stage], message.pass_id, self._carry)
        except LookupError as error:
            self._out.send(self._leader.actor, Failed(message.pass_id, None, str(error)))
            return False
        self.leave_pass()
        self._held_stage.begun(message.pass_id)
        self._begun = message.pass_id
        self._indirect.new_pass()
        training = message.kind is PassKind.TRAIN
        self.pace.new_pass(stage)
        self.pass_run = PassRun(
            self._context(),
            stage,
            BucketCounts(self._held_stage.buckets, self._held_stage.first_round, self._held_stage.shared),
            message,
            carry=carry,
            crossings=self._bases.crossings(message.pass_id.step) if training else Crossings(),
            unreachable=self._reachability.unreachable,
            now=now,
        )
        self._lend_orders.lend(message, self.is_applying)
        return True

    def _context(self) -> PassContext:
        return PassContext(
            self._me,
            self._leader.actor,
            self._settings,
            self._slots,
            self._waits,
            self._pauses,
            self._indirect,
            self._reachability.is_up,
            self._out,
            self._is_paused,
        )

    def leave_pass(self) -> None:
        if self.pass_run is not None:
            self.pass_run.leave()
            self.pass_run = None

    def resume(self) -> None:
        """The peer is not paused any more: continue with the open pass, unless a later one has begun without it."""
        if self.pass_run is None:
            return
        heard = self.catch_up.heard
        if heard is not None and self.pass_run.pass_id < heard:
            self.leave_pass()  # the pass was given up, or was decided without this peer, which listens to a later one
        else:
            self.pass_run.microbatches.resume()

    def follow_another(self) -> None:
        """Another coordinator leads. It opens its own passes."""
        self._opening = None

    # ------------------------------------------------------------ states

    def assigned(self, assign: Assign) -> None:
        load = self._held_stage.assigned(assign)
        if load is not None:
            self._take_up(load)

    def _take_up(self, load: LoadState) -> None:
        """Load a state, and drop all work that is based on the previous state."""
        self.leave_pass()
        self._bases.clear()
        self.catch_up.clear()
        self._proofs.clear()
        self._carry = None
        self._applying = None
        self._opening = None
        self._status_reports.takes_up(load.version)
        self.saves.takes_up(load.version)
        self._out.add(load)

    def start_again(self, reason: str) -> None:
        """Drop the state that is held or loaded, because nothing can be computed from it. The next pass orders to load
        a new one.
        """
        opening, self._opening = self._opening, None
        self._proofs.clear()
        self._held_stage.spoilt()
        if opening is not None:
            self._out.send(self._leader.actor, Failed(opening.pass_id, None, f"cannot catch up: {reason}"))

    # ------------------------------------------------------------ decisions

    def decided(self, message: Decide, now: float) -> None:
        """A step is decided."""
        decision = message.decision
        if message.term < self._held_stage.term:
            return  # sent before the current state was ordered: a rollback may have voided it
        self.finished = self.finished or message.finished
        if message.save:
            self.saves.ask_for(decision.step + 1)
        self._apply_if_prepared(decision)
        self.catch_up.decided(decision)
        if message.finished and self._applying is None:
            self._out.add(Stop(RUN_FINISHED))
        elif not message.finished:
            self._save_if_due(now)

    def _apply_if_prepared(self, decision: Decision) -> None:
        prepared = self.pass_run.prepared if self.pass_run is not None else None
        held_stage = self._held_stage
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

    def applied(self, step: StepNumber, digest: str, now: float) -> bool:
        """A step is applied. Return True if the pass that waited for it has begun."""
        decision, pass_run = self._applying, self.pass_run
        if decision is None or decision.step != step:
            return False
        self._carry = None
        if pass_run is not None and self._settings.averages_compressed:
            self._carry = Carry.of(self._me, pass_run.microbatches.table, decision)
        # do not build on a step that is not finite, or that other peers computed
        known = pass_run is not None and not decision.skip
        self.saves.applied(decision)
        crossings = pass_run.microbatches.crossings if pass_run is not None and known else Crossings()
        self._applying = None
        self._held_stage.applied(step)
        self._proofs.reached(self._leader.actor)
        self.catch_up.applied(step)
        if (settled := self._bases.settle(step, crossings)) is not None:
            self._out.add(settled)
        self.leave_pass()
        self._out.emit(StepApplied(step, digest))
        if not self.catch_up.behind:
            self._save_if_due(now)
        if self.finished:
            self._out.add(Stop(RUN_FINISHED))
        return self._begin_if_ready(now)

    def _save_if_due(self, now: float) -> None:
        if self._applying is None:
            self.saves.save_if_due(now)

    # ------------------------------------------------------------ steps that were decided without this peer

    def advance(self) -> None:
        """Continue to catch up."""
        if self._applying is None and (order := self.catch_up.advance()) is not None:
            self.leave_pass()
            self._out.add(order)

    def sums_missing(self, event: SumsMissing) -> None:
        if self.catch_up.missing(event):
            self.start_again(event.reason)

    def restored(self, event: Assembled) -> None:
        """The buffer now holds the sums of a step that was decided without this peer."""
        if self._applying is not None or self._held_stage.version != event.attempt.pass_id.step:
            return
        order = self.catch_up.restored(event)
        if order is not None:
            self._applying = order.decision
            self._out.add(order)
        elif reason := self.catch_up.spoilt():
            self.start_again(reason)

    def failed(self, event: ComputeFailed) -> None:
        """An optimizer step failed, so that the state mixes two versions; or sums could not be read."""
        applying = self._applying
        if applying is not None and event.pass_id == PassId(applying.term, applying.step):
            self._applying = None
            self.catch_up.clear()
            self._proofs.clear()
            self._held_stage.spoilt()
        elif applying is None:
            self.catch_up.failed(event)
            if reason := self.catch_up.spoilt():
                self.start_again(reason)
