"""A simulated peer: carries out its core's orders with the toy model, in virtual time, on one compute queue.

What a real peer keeps on disk (checkpoints) survives a crash in `Disk`; everything else is lost with the process.
"""

from __future__ import annotations

from typing import Any

from swarm.protocol import io
from swarm.protocol.ids import Actor, Microbatch, PassId, PassKind
from swarm.protocol.messages import CodecPair, LinkRate, Means, Message, Status, WithPayload
from swarm.protocol.peer import io as peer_io
from swarm.simulation.faults.false_means import CLAIMS
from swarm.simulation.faults.false_words import held_back_s, said
from swarm.simulation.faults.lie import FACTORS, HUGE, LIE
from swarm.simulation.faults.meddling import meddled
from swarm.simulation.kernel.compute_queue import Priority
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.world import World
from swarm.simulation.toy.process_group import ProcessGroup
from swarm.simulation.toy.sim_bases import SimBases
from swarm.simulation.toy.sim_catch_up import Lender, Loans
from swarm.simulation.toy.sim_reduce import SimReduce
from swarm.simulation.toy.sim_storage import Disk, SimStorage
from swarm.simulation.toy.toy_model import (
    RATES,
    backward_payload,
    buckets_of,
    checksum_of,
    coded,
    forward_payload,
    loss_gradient,
    loss_of,
    mix,
    on_kind,
    state_digest,
    stepped_state,
    token_of,
    weight_gradient,
)

_FORWARD_S, _BACKWARD_S, _SMALL_S, _APPLY_S = 0.010, 0.020, 0.001, 0.004
_WEIGHTS_S = 0.010
"""Seconds of the weight gradients, which a split backward computes later."""


class SimPeer(Lender):
    """A volunteer's process. The disk outlives it."""

    def __init__(self, world: World, actor: Actor, core: Any, disk: Disk, speed: float) -> None:
        super().__init__(world, actor, core, speed)
        self.means = Means()
        """The resources that it reports."""
        self.house: ProcessGroup[SimPeer] | None = None
        """The process that this peer shares with others. Set if processes can add further peers."""
        self.spare = False
        """True if it arrived after the start, to stand by."""
        self.fails_next = False
        """True if the next computation fails halfway."""
        self.kind = mix(*actor.peer.encode()) % 3 if world.unlike else 0
        """The kind of machine. A peer keeps it when it restarts."""
        self.overflows_next = False
        """True if the next result for a neighbour is not finite."""
        self.pause = ""
        """The reason why its owner wants nothing computed. Empty: it computes."""
        self._pass: PassId | None = None
        self._codecs: tuple[CodecPair, ...] = ()
        self._nonfinite = False
        """The same as `Begin.nonfinite`."""
        self._inputs: dict[Microbatch, int] = {}
        self._due: dict[Microbatch, tuple[int, int]] = {}
        """The (input, gradient) pairs of microbatches whose weight gradients are still to be computed."""
        self.loans = Loans(self, self.loaded)
        self.storage = SimStorage(self, disk, self.loans, self.loaded)
        self.reduce = SimReduce(self, self.loans)
        self._bases = SimBases(self)
        self._dispatch = {
            io.Send: self._send,
            io.Emit: self._emit,
            io.Stop: self._stop,
            peer_io.LoadState: self._load_state,
            peer_io.Begin: self._begin,
            peer_io.Forward: self._forward,
            peer_io.Backward: self._backward,
            peer_io.Weights: self._weights,
            peer_io.Discard: self._discard,
            peer_io.EncodePart: self.reduce.encode_part,
            peer_io.SumBucket: self.reduce.sum_bucket,
            peer_io.StoreSum: self.reduce.store_sum,
            peer_io.Assemble: self.reduce.assemble,
            peer_io.CancelReduce: self.reduce.cancel,
            peer_io.Apply: self._apply,
            peer_io.SettleBases: self._bases.settle,
            peer_io.Lend: self.loans.lend,
            peer_io.FetchSums: self.loans.fetch,
            peer_io.RestoreSums: self.reduce.restore,
            peer_io.SaveCheckpoint: self.storage.save,
            peer_io.ShowState: self._show_state,
            peer_io.OpenSeats: self._open_seats,
        }

    @property
    def mates(self) -> list[Process]:
        return [self] if self.house is None else list(self.house.peers)

    @property
    def reduces(self) -> bool:
        """True if it takes part in a reduction with microbatches of its own."""
        pass_run = self.core.pass_run
        if pass_run is None or pass_run.reduction is None or pass_run.prepared is not None:
            return False
        return bool(pass_run.microbatches.table.assigned_to(self.actor))

    def start(self) -> None:
        super().start()
        if self.alive:
            self.world.on_phase("joining", self)

    def can_hold(self, version: int) -> bool:
        """Return True if it holds this version, or lacks only the last decision."""
        if self.lie is not None and self.lie.of_itself and self.is_liar:
            return False
        if self.version == version:
            return True
        prepared = None if self.core.pass_run is None else self.core.pass_run.prepared
        decision = self.world.watch.decisions.get(version - 1)
        if self.version != version - 1 or prepared is None or decision is None:
            return False
        # equal bytes of an earlier attempt may be discarded by now
        return bool(prepared.attempt.pass_id.term == decision.term)

    def feed(self, item: Any) -> None:
        if isinstance(item, peer_io.PauseChanged):
            self.pause = item.reason
        data = isinstance(item, io.Received) and isinstance(item.message, WithPayload)
        if not (data and self.swallowed("frames")):
            super().feed(item)

    # ------------------------------------------------------------ plain orders

    def _send(self, action: io.Send) -> None:
        message = action.message if self.lie is None else said(self, action.to, action.message)
        if message is not None and self.lie is not None and (late_s := held_back_s(self, action.to, message)):
            self.world.at(self.world.now + late_s, self, (self._send_late, (action.to, message)))
        elif message is not None:
            self.world.network.send(self, action.to, message)
        if self.lie is not None and isinstance(message, Status):
            for to, forged in meddled(self, message):
                self.world.network.send(self, to, forged)

    def _send_late(self, sending: tuple[Actor, Message]) -> None:
        self.world.network.send(self, *sending)

    def _emit(self, action: io.Emit) -> None:
        pass

    def _stop(self, action: io.Stop) -> None:
        expelled = self.world.watch.is_expelled(self.actor)
        if action.failed and self.lie is None and not expelled:
            self.world.watch.gives_up(self.label, action.reason)
        self.alive = False
        self.finished = self.core.finished or not (self.core.leaving or expelled)
        if not self.finished:
            self.world.watch.leaving.leaves(self)
        if self.house is not None and not self.leaving and not self.finished:
            self.house.left(self)
        self.world.network.process_died(self)

    def _open_seats(self, action: peer_io.OpenSeats) -> None:
        assert self.house is not None, "the coordinator asks only a process that takes further peers"
        self.house.wanted(action.seats)

    def _begin(self, action: peer_io.Begin) -> None:
        self.world.watch.began(self, action)
        self._pass = action.pass_id
        self._codecs = action.codecs
        self._nonfinite = action.nonfinite
        if action.codecs:
            self.world.at(self.world.now + _SMALL_S, self, self._measured())
        self.accumulator = 0
        self._inputs.clear()
        self._due.clear()
        self._bases.begin()
        self.queue.cancel(lambda of: not isinstance(of, peer_io.Apply | peer_io.ShowState))
        if action.kind is not PassKind.TRAIN:
            self.world.on_phase("evaluating", self)

    def _measured(self) -> peer_io.LinksMeasured:
        """Random link rates, some with a limit, some without one and unmeasured."""
        draw = self.world.random.choice
        known = [LinkRate(actor, draw(RATES)) for actor in self.world.by_actor if draw((True, False))]
        return peer_io.LinksMeasured(draw((None, *RATES)), tuple(known))

    def _discard(self, action: peer_io.Discard) -> None:
        self._inputs.pop(action.microbatch, None)
        self._due.pop(action.microbatch, None)
        self._bases.discard(action.pass_id, action.microbatch)
        m = action.microbatch
        self.queue.cancel(lambda of: isinstance(of, peer_io.Forward) and of.microbatch == m, running=False)
        self.queue.cancel(lambda of: isinstance(of, peer_io.Weights) and of.microbatch == m)

    # ------------------------------------------------------------ computing

    def _may_begin(self, what: str) -> None:
        """Check that the peer may begin work. Raises Violation while it is paused."""
        if self.pause:
            raise Violation("pause", f"{self.label} begins {what} while it is paused: {self.pause}")

    def _forward(self, action: peer_io.Forward) -> None:
        if self.swallowed("work") or self.lies("lazy" if action.kind is PassKind.TRAIN else "mute"):
            return
        self._may_begin("a forward")
        self.world.watch.passes.works_on(self, action.pass_id, "a forward")
        seconds = _FORWARD_S
        if action.kind is PassKind.TRAIN:
            self.world.on_phase("forward", self)
            if self.stage == self.world.settings.stages - 1:
                seconds += self._backward_s(action.microbatch)
                self.world.on_phase("backward", self)
        self.queue.add(Priority.FORWARD, action, self._forwarded, seconds)

    def _forwarded(self, action: peer_io.Forward) -> None:
        if self.fails_next:
            self._fail(action)
            return
        if self._overflows(action.pass_id):
            self._fail(action, nonfinite=True)
            return
        if self.lies("failed"):
            self._fail(action, nonfinite=action.kind is PassKind.TRAIN and self.world.random.random() < 0.5)
            return
        assert self.stage is not None
        stages = self.world.settings.stages
        payload = self._bases.taken_in(action, self.number(action.payload))
        output = forward_payload(self.stage, self.state, payload)
        if self.stage < len(self._codecs):
            output = coded(output, self._codecs[self.stage].forward)
        seconds = _FORWARD_S * self.pace
        m = action.microbatch
        if action.kind is PassKind.TRAIN:
            output = on_kind(output, self.kind)
        if action.kind is PassKind.TRAIN and self.lies("activations"):
            output = mix(output)
        if action.kind is PassKind.TRAIN and self.lies("constant"):
            output = mix(0)
        if action.kind is not PassKind.TRAIN and self.lies("misjudging"):
            self.world.watch.misjudged.add(action.pass_id)
            output = mix(output)
        if self.stage < stages - 1:
            self._inputs[m] = payload
            self.feed(self._bases.sent(action, output, seconds))
        elif action.kind is PassKind.TRAIN:
            self.feed(self._went_back(action.pass_id, m, payload, loss_gradient(output)))
        else:
            self.feed(peer_io.ResultDone(action.pass_id, m, loss_of(output), token_of(output)))

    def _backward(self, action: peer_io.Backward) -> None:
        if self.swallowed("work") or self.lies("lazy"):
            return
        self._may_begin("a backward")
        self.world.watch.passes.works_on(self, action.pass_id, "a backward")
        self.world.on_phase("backward", self)
        self.queue.add(Priority.BACKWARD, action, self._backwarded, self._backward_s(action.microbatch))

    def _backwarded(self, action: peer_io.Backward) -> None:
        if self.fails_next:
            self._fail(action)
            return
        if self._overflows(action.pass_id):
            self._fail(action, nonfinite=True)
            return
        if self.number(action.payload) == HUGE:
            self._fail(action, nonfinite=not self._nonfinite and self.world.random.random() < 0.5)
            return
        payload = self._inputs.pop(action.microbatch, None)
        if payload is None:
            raise Violation("contract", f"{self.label}: backward of m{action.microbatch}, which was not forwarded here")
        self.feed(self._went_back(action.pass_id, action.microbatch, payload, self.number(action.payload)))

    def _splits(self, m: Microbatch) -> bool:
        """Return True if the weight gradients of a microbatch are postponed: there is memory to keep the inputs of
        most.

        Some peers never split a backward.
        """
        name = self.actor.peer.encode()
        return mix(5, *name) % 4 > 0 and mix(6, m, *name) % 8 > 0

    def _backward_s(self, m: Microbatch) -> float:
        """Seconds of the backward, without the postponed part."""
        return _BACKWARD_S - _WEIGHTS_S if self._splits(m) else _BACKWARD_S

    def _went_back(self, pass_id: PassId, m: Microbatch, payload: int, gradient: int) -> peer_io.BackwardDone:
        assert self.stage is not None
        gradient = on_kind(gradient, self.kind)
        back = backward_payload(self.stage, self.state, payload, gradient) if self.stage else None
        if self._splits(m):
            self._due[m] = payload, gradient
        else:
            self._accumulate(pass_id, m, payload, gradient)
        if back is not None and self.lies("gradients"):
            back = mix(back)
        if back is not None and self._codecs:
            back = coded(back, self._codecs[self.stage - 1].backward)
        if back is not None and self.lies("huge"):
            back = HUGE
        received = self._bases.received(pass_id, m)
        last = self.stage == self.world.settings.stages - 1
        seconds = ((_FORWARD_S if last else 0.0) + self._backward_s(m)) * self.pace
        return peer_io.BackwardDone(pass_id, m, back, seconds, received, weights_due=m in self._due)

    def _weights(self, action: peer_io.Weights) -> None:
        if self.swallowed("work") or self.lies("lazy"):
            return
        self.world.watch.passes.works_on(self, action.pass_id, "weights' gradients")
        self.world.on_phase("weights", self)
        self.queue.add(Priority.WEIGHTS, action, self._weighted, _WEIGHTS_S)

    def _weighted(self, action: peer_io.Weights) -> None:
        if self.fails_next:
            self._fail(action)
            return
        m = action.microbatch
        if m not in self._due:
            raise Violation("contract", f"{self.label}: no weight gradients of m{m} are due here")
        self._accumulate(action.pass_id, m, *self._due.pop(m))
        self.feed(peer_io.WeightsDone(action.pass_id, m, _WEIGHTS_S * self.pace))

    def _accumulate(self, pass_id: PassId, m: Microbatch, payload: int, gradient: int) -> None:
        assert self.stage is not None
        self.world.watch.leaving.accumulates(self, pass_id, m)
        count = self.world.settings.microbatches
        added = weight_gradient(self.stage, self.state, payload, gradient, m, count)
        if self.lies("sums"):
            added += LIE
        if self.lie is not None and (factor := FACTORS.get(self.lie.about)) and self.lies(self.lie.about):
            added = added * factor[0] // factor[1]
        self.accumulator += added

    # ------------------------------------------------------------ misbehaviour

    def spoil_step(self, for_good: bool) -> None:
        """The gradient of this stage in the open step is not finite: in this term only, or whenever it is computed."""
        if self.stage is not None and self._pass is not None and self._pass.index == 0:
            self.world.watch.nonfinite.gradients[self.stage, self._pass.step] = None if for_good else self._pass.term

    def overflow(self, for_good: bool) -> None:
        """Results for a neighbour are not finite: in this step for any peer, or once for this peer."""
        if not for_good:
            self.overflows_next = True
        elif self.stage is not None and self._pass is not None and self._pass.index == 0:
            self.spoil_step(for_good=True)
            self.world.watch.nonfinite.overflowing.add((self.stage, self._pass.step))

    def _overflows(self, pass_id: PassId) -> bool:
        """Return True if the latest result cannot be sent."""
        if pass_id.index or self._nonfinite:
            return False
        if self.lies("unsendable"):
            return True
        found = self.overflows_next or (self.stage, pass_id.step) in self.world.watch.nonfinite.overflowing
        self.overflows_next = False
        if found:
            self.world.watch.nonfinite.found(pass_id)
        return found

    # ------------------------------------------------------------ state

    def _apply(self, action: peer_io.Apply) -> None:
        if self.held_stage != action.decision.step:
            raise Violation("atomic", f"{self.label} orders step {action.decision.step} at version {self.held_stage}")
        self.reduce.sums(action.attempt)
        self.held_stage += 1
        self.world.on_phase("applying", self)
        self.queue.add(Priority.CONTROL, action, self._applied, _APPLY_S)

    def _applied(self, action: peer_io.Apply) -> None:
        if self.fails_next or self.lies("hoarding"):
            self._fail(action)
            return
        assert self.stage is not None and self.version is not None
        sums = self.reduce.sums(action.attempt)
        ordered = tuple(sums[bucket] for bucket in sorted(sums))
        self.state = stepped_state(self.stage, self.state, ordered, action.decision.scale, action.decision.rate)
        self.version += 1
        self.reduce.settle(action, self.version)
        self.loans.applied(action.attempt, sums)
        self.world.watch.applied(self, action.decision, sums)
        self.feed(peer_io.AppliedStep(action.decision.step, state_digest(self.stage, self.version, self.state)))
        if self.alive:
            self.world.on_phase("before open", self)

    def _load_state(self, action: peer_io.LoadState) -> None:
        self.queue.cancel(lambda of: True)
        if self.stage != action.stage:
            self.began_to_load_at = self.world.now
        self.stage, self.version, self.held_stage = action.stage, None, None
        if not self.fits(action.stage) and self.lie is not None and self.lie.about in CLAIMS:
            late = self.world.now + _SMALL_S
            self.world.at(
                late, self, peer_io.StateFailed(action.stage, action.version, "it does not fit into the memory")
            )
            return
        if not self.fits(action.stage):
            raise Violation("memory", f"{self.label} gets a stage that does not fit into its {self.means.memory} bytes")
        if self.lie is not None and self.lie.stage not in (None, action.stage):
            self.lie = None  # the former owner's fault does not apply to the new state
        self._bases.clear()
        self.loans.clear()
        self.world.on_phase("joining", self)
        self.storage.load(action)

    def fits(self, stage: int) -> bool:
        """Return True if the stage fits into the peer's memory, as the peer computes it."""
        means, needs = self.means, self.world.settings.stage_needs
        return means.memory is None or not needs or needs[means.kind].least[stage] <= means.memory

    def loaded(self, action: peer_io.LoadState, state: int | None) -> None:
        """A LoadState is done. `state` None: it failed."""
        if state is None:
            self.feed(
                peer_io.StateFailed(action.stage, action.version, "the source does not have it or does not answer")
            )
            return
        self.version, self.held_stage, self.state = action.version, action.version, state
        self.reduce.clear()
        self.deceived = self._is_deceived(action.stage)
        self.world.watch.holds(self)
        shared = self.reduce.shared(action.stage)
        buckets = buckets_of(action.stage, shared)
        self.feed(peer_io.StateLoaded(action.stage, action.version, buckets, self.world.first_round, shared))
        if self.alive:
            self.world.on_phase("before open", self)

    def _is_deceived(self, stage: int) -> bool:
        """Return True if an insider has given it a false state."""
        assert self.version is not None
        if self.state == self.world.watch.ideal.states[self.version][stage]:
            return False
        return any(isinstance(p, SimPeer) and p.lie is not None and p.lie.about == "gift" for p in self.world.processes)

    def _show_state(self, action: peer_io.ShowState) -> None:
        self.queue.add(Priority.CONTROL, action, self._showed, _SMALL_S)

    def _showed(self, action: peer_io.ShowState) -> None:
        is_held = self.version == action.version
        shown = checksum_of(self.state, action.nonce) if is_held else None
        self.feed(peer_io.StateShown(action.version, action.nonce, shown))

    def live_state(self, stage: int, version: int) -> int | None:
        return self.storage.live_state(stage, version)

    def snapshot(self, stage: int, version: int) -> int | None:
        return self.storage.snapshot(stage, version)

    # ------------------------------------------------------------ failing

    def _fail(
        self,
        action: peer_io.Forward | peer_io.Backward | peer_io.Weights | peer_io.Apply,
        nonfinite: bool = False,
    ) -> None:
        """An exception halfway through a computation, which leaves garbage in the accumulator or in the parameters."""
        self.fails_next = False
        if isinstance(action, peer_io.Apply):
            self.state, self.version, self.held_stage = -1, None, None
            self.feed(peer_io.ComputeFailed(action.attempt.pass_id, None, "out of memory"))
        else:
            self.accumulator += 1 << 3
            reason = "not finite" if nonfinite else "out of memory"
            self.feed(peer_io.ComputeFailed(action.pass_id, action.microbatch, reason, nonfinite))
