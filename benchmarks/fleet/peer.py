"""A volunteer of the fleet: carries out its core's orders in the time that its machine and its line need.

Nothing is computed, but the peer keeps track of what is added up. A sum that lacks a microbatch or has one twice is a
`Violation`, and so is a step that is applied at another version.
"""

from __future__ import annotations

from typing import Any

from benchmarks.fleet.ground import FleetProcess, Ground
from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.payload import Ballast
from swarm.protocol import io
from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, PassKind, StageIndex, StepNumber
from swarm.protocol.peer import io as peer_io
from swarm.simulation.kernel.compute_queue import ComputeQueue, Priority
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation

INITIALISE_S, SAVE_S = 0.5, 1.0
CHUNK_BYTES = 1 << 20
ASKINGS = 4
"""Number of times that the donors are asked for the sums of a step."""
LOST_S = 2.0
"""Seconds after which a receiver notices that the donor of a state is gone."""


class FleetPeer(FleetProcess):
    role = "peer"

    def __init__(self, world: Ground, actor: Actor, core: Any, machine: FleetMachine) -> None:
        super().__init__(world, actor, core, machine)
        self.slowness = 1.0 / machine.speed
        self.stage: int | None = None
        self.version: int | None = None
        self.computed = 0
        """Number of accumulated microbatches, whether they counted or not."""
        self._pass: PassId | None = None
        self._sum = 0
        """Bit set of the microbatches in the accumulator."""
        self._queue = ComputeQueue(self)
        self._buffer_of: Attempt | None = None
        self._buffer: set[int] = set()
        self._load = 0
        self._copies: set[int] = set()
        """Versions of which a copy is kept for peers that take up this stage."""
        self._lent: peer_io.Lend | None = None
        self._sums: dict[int, str] = {}
        """Sums that are kept for these peers: {step: digest}"""
        self._fetching: tuple[int, peer_io.FetchSums] = (0, peer_io.FetchSums(StageIndex(0), StepNumber(-1), "", ()))
        """The current fetch: (number, order)"""
        self._taken = 0
        self._dispatch = {
            io.Send: self._send,
            io.Emit: self._ignore,
            io.Stop: self._stop,
            peer_io.LoadState: self._load_state,
            peer_io.Begin: self._begin,
            peer_io.Forward: self._forward,
            peer_io.Backward: self._backward,
            peer_io.Discard: self._discard,
            peer_io.EncodePart: self._encode_part,
            peer_io.SumBucket: self._sum_bucket,
            peer_io.StoreSum: self._store_sum,
            peer_io.Assemble: self._assemble,
            peer_io.CancelReduce: self._cancel_reduce,
            peer_io.Apply: self._apply,
            peer_io.SettleBases: self._ignore,
            peer_io.Lend: self._lend,
            peer_io.FetchSums: self._fetch_sums,
            peer_io.RestoreSums: self._restore_sums,
            peer_io.SaveCheckpoint: self._save_checkpoint,
            peer_io.ShowState: self._show_state,
        }

    # ------------------------------------------------------------ plain orders

    def _send(self, action: io.Send) -> None:
        self.world.links.send(self, action.to, action.message)

    def _ignore(self, action: io.Emit | peer_io.SettleBases) -> None:
        pass

    def _stop(self, action: io.Stop) -> None:
        self.finished = True
        self.world.crash(self)

    def _begin(self, action: peer_io.Begin) -> None:
        self._pass = action.pass_id
        self._sum = 0
        self._queue.cancel(lambda of: not isinstance(of, peer_io.Apply | peer_io.ShowState))

    def _discard(self, action: peer_io.Discard) -> None:
        m = action.microbatch
        self._queue.cancel(lambda of: isinstance(of, peer_io.Forward) and of.microbatch == m, running=False)

    # ------------------------------------------------------------ computing

    def _forward(self, action: peer_io.Forward) -> None:
        load, last = self.world.workload, self.stage == self.world.settings.stages - 1
        seconds = load.seconds if last and action.kind is PassKind.TRAIN else load.forward_s
        self._queue.add(Priority.FORWARD, action, self._forwarded, seconds)

    def _forwarded(self, action: peer_io.Forward) -> None:
        if self.stage != self.world.settings.stages - 1:
            seconds = self.world.workload.forward_s * self.slowness
            self.feed(peer_io.ForwardDone(action.pass_id, action.microbatch, self._frame(), seconds))
        elif action.kind is PassKind.TRAIN:
            self._accumulated(action.pass_id, action.microbatch, self.world.workload.seconds)
        else:
            self.feed(peer_io.ResultDone(action.pass_id, action.microbatch, 1.0, 0))

    def _backward(self, action: peer_io.Backward) -> None:
        self._queue.add(Priority.BACKWARD, action, self._backwarded, self.world.workload.backward_s)

    def _backwarded(self, action: peer_io.Backward) -> None:
        self._accumulated(action.pass_id, action.microbatch, self.world.workload.backward_s)

    def _accumulated(self, pass_id: PassId, m: Microbatch, seconds: float) -> None:
        if self._sum >> m & 1 or pass_id != self._pass:
            raise Violation("exactly once", f"{self.name} adds microbatch {m} of {pass_id} again")
        self._sum |= 1 << m
        self.computed += 1
        self.world.journal.accumulated_at = self.world.now
        gradient = self._frame() if self.stage else None
        self.feed(peer_io.BackwardDone(pass_id, m, gradient, seconds * self.slowness))

    def _frame(self) -> Ballast:
        return Ballast(self.world.workload.frame_bytes)

    # ------------------------------------------------------------ reducing

    def _encode_part(self, action: peer_io.EncodePart) -> None:
        self._queue.add(Priority.CONTROL, action, self._part_encoded, self.world.workload.pack_s)

    def _part_encoded(self, action: peer_io.EncodePart) -> None:
        self.feed(peer_io.PartEncoded(action.attempt, action.bucket, self._share(self._sum)))

    def _sum_bucket(self, action: peer_io.SumBucket) -> None:
        load = self.world.workload
        seconds = load.pack_s + len(action.parts) * load.unpack_s if action.parts else 0.0  # nobody else receives it
        self._queue.add(Priority.CONTROL, action, self._bucket_summed, seconds)

    def _bucket_summed(self, action: peer_io.SumBucket) -> None:
        total, count = self._sum, self._sum.bit_count()
        for part in action.parts:
            assert isinstance(part, Ballast)
            total |= part.microbatches
            count += part.microbatches.bit_count()
        microbatches = self.world.settings.microbatches
        if count != microbatches or total != (1 << microbatches) - 1:
            raise Violation("exactly once", f"{action.attempt} adds up {count} of {microbatches} microbatches")
        self.feed(peer_io.BucketSummed(action.attempt, action.bucket, self._share(total)))

    def _share(self, microbatches: int) -> Ballast:
        return Ballast(self.world.workload.bucket_bytes, microbatches)

    def _store_sum(self, action: peer_io.StoreSum) -> None:
        if self._buffer_of != action.attempt:
            self._buffer_of, self._buffer = action.attempt, set()
        self._buffer.add(action.bucket)

    def _assemble(self, action: peer_io.Assemble) -> None:
        self._queue.add(Priority.CONTROL, action, self._assembled, self.world.workload.apply_s)

    def _assembled(self, action: peer_io.Assemble | peer_io.RestoreSums) -> None:
        self._check_buffer(action.attempt)
        attempt = action.attempt
        self.feed(peer_io.Assembled(attempt, self._digest(attempt.pass_id.step + 1), 1.0, 1.0))

    def _check_buffer(self, attempt: Attempt) -> None:
        if self._buffer_of != attempt or len(self._buffer) != self.world.workload.buckets:
            raise Violation(
                "contract", f"{self.name} needs the sums of {attempt}, but holds those of {self._buffer_of}"
            )

    def _cancel_reduce(self, action: peer_io.CancelReduce) -> None:
        void = action.attempt
        self.world.links.withdraw(self, void)
        self._queue.cancel(lambda of: getattr(of, "attempt", None) == void and not isinstance(of, peer_io.Apply))
        if self._buffer_of == void:
            self._buffer_of, self._buffer = None, set()

    def _digest(self, version: int) -> str:
        return f"{self.stage}/{version}"

    # ------------------------------------------------------------ state

    def _apply(self, action: peer_io.Apply) -> None:
        self._check_buffer(action.attempt)
        step = action.decision.step
        if self._lent is not None and self._lent.sums and self._lent.pass_id == action.attempt.pass_id:
            self._sums[step] = self._digest(step + 1)
        self._queue.add(Priority.CONTROL, action, self._applied, self.world.workload.apply_s)

    def _applied(self, action: peer_io.Apply) -> None:
        if self.version != action.decision.step:
            raise Violation("atomic", f"{self.name} applies step {action.decision.step} at version {self.version}")
        self.version += 1
        self.feed(peer_io.AppliedStep(action.decision.step, self._digest(self.version)))

    def _load_state(self, action: peer_io.LoadState) -> None:
        self._load += 1
        self._queue.cancel(lambda of: True)
        self.stage, self.version = int(action.stage), None
        self._copies.clear()
        self._sums.clear()
        self._lent = None
        world, order = self.world, (self._load, action)
        donors = [world.by_actor.get(donor.actor) for donor in action.donors]
        having = [p for p in donors if isinstance(p, FleetPeer) and p.alive and p.holds(action)]  # all are asked
        source = self._donor(tuple(p.actor for p in having))
        if isinstance(source, FleetPeer):
            world.at(world.now + world.links.one_way_s(self, source), source, (source.give, (self, order)))
            self._watch_source((order, source))
        elif action.version == 0 and not action.donors and action.archive is None:
            world.at(world.now + INITIALISE_S, self, (self._loaded, order))
        else:
            world.at(world.now + LOST_S, self, (self._failed, order))

    def holds(self, order: peer_io.LoadState) -> bool:
        """Return True if it can give the state of an order: a copy, or the state that it trains."""
        return self.stage == order.stage and order.version in {*self._copies, self.version}

    def give(self, request: tuple[FleetPeer, tuple[int, peer_io.LoadState]]) -> None:
        """Another peer asks for the state of this stage."""
        asking, order = request
        if self.holds(order[1]):
            self._give_chunk((asking, order, self.world.workload.state_bytes))
        else:
            world = self.world
            world.at(world.now + world.links.one_way_s(self, asking), asking, (asking._failed, order))

    def _give_chunk(self, giving: tuple[FleetPeer, tuple[int, peer_io.LoadState], int]) -> None:
        """Send one chunk at a time, so that frames can be sent in between."""
        asking, order, left = giving
        if not asking.alive or order[0] != asking._load:
            return
        size = min(CHUNK_BYTES, left)
        done = left == size
        then = asking._loaded if done else asking._chunk_came
        rest = asking, order, left - size
        gone = None if done else lambda: self._give_chunk(rest)
        self.world.links.carry(self, asking, size, then, order, gone)

    def _chunk_came(self, order: tuple[int, peer_io.LoadState]) -> None:
        self._taken += CHUNK_BYTES
        self.feed(peer_io.Fetched(self._taken))

    def _donor(self, donors: tuple[Actor, ...]) -> Process | None:
        """One of the donors. It differs from peer to peer."""
        there = [p for actor in donors if (p := self.world.by_actor.get(actor)) is not None and p.alive]
        return there[(self.pid + self._load) % len(there)] if there else None

    def _watch_source(self, watched: tuple[tuple[int, peer_io.LoadState], Process]) -> None:
        order, source = watched
        if order[0] != self._load or self.version is not None:
            return
        if not source.alive:
            self._failed(order)
        else:
            self.world.at(self.world.now + LOST_S, self, (self._watch_source, watched))

    def _failed(self, order: tuple[int, peer_io.LoadState]) -> None:
        load, action = order
        if load == self._load and self.version is None:
            self._load += 1
            self.feed(peer_io.StateFailed(action.stage, action.version, "the source does not have it or is gone"))

    def _loaded(self, order: tuple[int, peer_io.LoadState]) -> None:
        number, action = order
        if number == self._load:
            self.version = action.version
            self._buffer_of, self._buffer = None, set()
            load = self.world.workload
            self.feed(peer_io.StateLoaded(action.stage, action.version, load.buckets, load.first_round))

    # ------------------------------------------------------------ catching up

    def _lend(self, action: peer_io.Lend) -> None:
        self._lent = action
        self._copies.intersection_update(action.versions)
        self._sums = {step: digest for step, digest in self._sums.items() if step >= action.since}
        if action.pass_id.version in action.versions:
            if self.version != action.pass_id.version:
                raise Violation("contract", f"{self.name} is to copy version {action.pass_id.version}")
            self._copies.add(action.pass_id.version)

    def _fetch_sums(self, action: peer_io.FetchSums) -> None:
        number, running = self._fetching
        if running.step == action.step and running.stage == action.stage:
            self._fetching = number, action  # only the donors are others
            return
        self._fetching = number + 1, action
        self._ask_for_sums((number + 1, ASKINGS))

    def _ask_for_sums(self, asking: tuple[int, int]) -> None:
        number, left = asking
        world, order = self.world, self._fetching[1]
        if number != self._fetching[0] or order.step < 0:
            return
        donor = self._donor(order.donors)
        if not left:
            self._end_fetch(peer_io.SumsMissing(order.stage, order.step, "no donor has them"))
        elif isinstance(donor, FleetPeer) and donor._sums.get(order.step) == order.digest:
            load = world.workload
            world.links.carry(donor, self, load.buckets * load.bucket_bytes, self._sums_came, number)
            self._ask_if_lost((number, left - 1, donor))
        else:
            world.at(world.now + LOST_S, self, (self._ask_for_sums, (number, left - 1)))

    def _ask_if_lost(self, sent: tuple[int, int, Process]) -> None:
        number, left, donor = sent
        if number != self._fetching[0] or self._fetching[1].step < 0:
            return
        if not donor.alive:
            self._ask_for_sums((number, left))
        else:
            self.world.at(self.world.now + LOST_S, self, (self._ask_if_lost, sent))

    def _sums_came(self, number: int) -> None:
        order = self._fetching[1]
        if number == self._fetching[0] and order.step >= 0:
            self._taken += 1
            self.feed(peer_io.Fetched(self._taken))
            self._end_fetch(peer_io.SumsFetched(order.stage, order.step))

    def _end_fetch(self, found: peer_io.SumsFetched | peer_io.SumsMissing) -> None:
        self._fetching = self._fetching[0], peer_io.FetchSums(StageIndex(0), StepNumber(-1), "", ())
        self.feed(found)

    def _restore_sums(self, action: peer_io.RestoreSums) -> None:
        self._queue.cancel(lambda of: isinstance(of, peer_io.Forward | peer_io.Backward))
        self._buffer_of, self._buffer = action.attempt, set(range(self.world.workload.buckets))
        self._queue.add(Priority.CONTROL, action, self._assembled, self.world.workload.apply_s)

    def _show_state(self, action: peer_io.ShowState) -> None:
        shown = action.nonce if self.version == action.version else None  # all that hold a version hold the same
        self.feed(peer_io.StateShown(action.version, action.nonce, shown))

    def _save_checkpoint(self, action: peer_io.SaveCheckpoint) -> None:
        self.world.at(self.world.now + SAVE_S, self, (self._saved, action))

    def _saved(self, order: peer_io.SaveCheckpoint) -> None:
        self.feed(peer_io.CheckpointSaved(order.version, self._digest(order.version), order.number))
