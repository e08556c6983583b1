"""A simulated peer: carries out its core's orders with the toy model, in virtual time, through one compute queue.

What the real peer keeps on disk (checkpoints) survives a crash in `Disk`; everything else dies with the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swarm.protocol import actions as act
from swarm.protocol.ids import Actor, Attempt, BaseKey, End, Microbatch, PassId, PassKind, StageIndex
from swarm.protocol.messages import CodecPair, LinkRate, WithPayload
from swarm.protocol.reporter import Saved
from swarm.simulation.compute_queue import ComputeQueue, Priority
from swarm.simulation.house import House
from swarm.simulation.invariants import Violation, reduced_digest
from swarm.simulation.lie import Lie
from swarm.simulation.loans import Loans
from swarm.simulation.timeline import Process
from swarm.simulation.toy_averaging import compressed
from swarm.simulation.toy_model import (
    RATES,
    backward_payload,
    bucket_share,
    buckets_of,
    change,
    coded,
    forward_payload,
    initial_state,
    loss_gradient,
    loss_of,
    loss_sum_of,
    mix,
    reconstruction_digest,
    rounded,
    rounded_since,
    shared_buckets,
    shared_digest,
    squared_norm_of,
    state_digest,
    stepped_state,
    token_of,
    weight_gradient,
)

if TYPE_CHECKING:
    from swarm.simulation.world import World

_FORWARD_S, _BACKWARD_S, _SMALL_S, _APPLY_S = 0.010, 0.020, 0.001, 0.004
_LIE = 1 << 90
_LOAD_S, _SAVE_S, _FETCH_TIMEOUT_S = 0.05, 0.03, 1.0


@dataclass(slots=True)
class Disk:
    """What a volunteer's machine keeps: {(stage, version): state}."""

    checkpoints: dict[tuple[int, int], int] = field(default_factory=dict)

    def newest(self) -> Saved | None:
        if not self.checkpoints:
            return None
        version, stage = max((version, stage) for stage, version in self.checkpoints)
        return Saved(StageIndex(stage), version, state_digest(stage, version, self.checkpoints[stage, version]))


class SimPeer(Process):
    """A volunteer's process. `disk` outlives it."""

    def __init__(self, world: World, actor: Actor, core: Any, disk: Disk, speed: float) -> None:
        super().__init__(world, actor, core)
        self.disk = disk
        self.speed = speed
        self.slowness = speed
        self.uplink: float | None = None
        """Bytes a second that it says it can send."""
        self.house: House | None = None
        """Given where processes take further peers on."""
        self.spare = False
        """Came after the start, to stand by."""
        self.fails_next = False
        """The next computation raises, half way through."""
        self.flips_next = False
        """A bit of the next reduced bucket flips on its way into memory."""
        self._swallows: tuple[str, float] = ("", 0.0)
        """What it takes and does nothing with (work, frames), and until when."""
        self.lie: Lie | None = None
        """What it computes wrong."""
        self.overflows_next = False
        """What it computes next for a neighbour is not finite."""
        self.stage: int | None = None
        self.version: int | None = None
        self.holding: int | None = None
        """The version after the applies that are queued: what the next pass starts from."""
        self.state = 0
        self._pass: PassId | None = None
        self._codecs: tuple[CodecPair, ...] = ()
        self._nonfinite = False
        """As in Begin."""
        self._accumulator = 0
        self._inputs: dict[Microbatch, int] = {}
        self._queue = ComputeQueue(self)
        self._buffer_of: Attempt | None = None
        self._buffer: dict[int, int] = {}
        self._load = 0
        self.loans = Loans(self)
        self._bases: dict[BaseKey, int] = {}
        self._staged: dict[BaseKey, int] = {}
        self._residuals: dict[tuple[bool, int], int] = {}
        """{(of a sum, bucket): what compressing it lost in the last step applied}"""
        self._residuals_for: int | None = None
        """The version they are for."""
        self._pending: dict[tuple[bool, int], int] = {}
        self._pending_of: Attempt | None = None
        self._dispatch = {
            act.Send: self._send,
            act.Emit: self._emit,
            act.Stop: self._stop,
            act.LoadState: self._load_state,
            act.Begin: self._begin,
            act.Forward: self._forward,
            act.Backward: self._backward,
            act.Discard: self._discard,
            act.EncodePart: self._encode_part,
            act.SumBucket: self._sum_bucket,
            act.StoreSum: self._store_sum,
            act.Assemble: self._assemble,
            act.CancelReduce: self._cancel_reduce,
            act.Apply: self._apply,
            act.SettleBases: self._settle_bases,
            act.Lend: self.loans.lend,
            act.FetchSums: self.loans.fetch,
            act.RestoreSums: self._restore_sums,
            act.SaveCheckpoint: self._save_checkpoint,
            act.OpenSeats: self._open_seats,
        }

    @property
    def mates(self) -> list[Process]:
        return [self] if self.house is None else list(self.house.peers)

    @property
    def role(self) -> str:  # type: ignore[override]
        """Where in the pipeline this peer stands."""
        if self.stage is None:
            return "standby"
        if self.stage == 0:
            return "first"
        return "last" if self.stage == self.world.settings.stages - 1 else "middle"

    @property
    def label(self) -> str:
        where = "standby" if self.stage is None else f"s{self.stage} v{self.version}"
        return f"{self.name} ({where})"

    def start(self) -> None:
        super().start()
        if self.alive:
            self.world.on_phase("joining", self)

    def can_hold(self, version: int) -> bool:
        """Whether it holds this version, or needs only to be told of the last decision."""
        stint = self.core.stint
        prepared = stint is not None and stint.prepared is not None
        return self.version == version or (self.version == version - 1 and prepared)

    def swallow(self, what: str, until: float) -> None:
        """A black hole: it goes on saying that it is there, and nothing comes of what it accepts.

        `work`: what it is to compute; `frames`: what comes from other peers.
        """
        self._swallows = what, until
        self.disturbed_at = until

    def _swallowed(self, what: str) -> bool:
        return self._swallows[0] == what and self.world.now < self._swallows[1]

    def feed(self, item: Any) -> None:
        data = isinstance(item, act.Received) and isinstance(item.message, WithPayload)
        if not (data and self._swallowed("frames")):
            super().feed(item)

    # ------------------------------------------------------------ plain orders

    def _send(self, action: act.Send) -> None:
        self.world.network.send(self, action.to, action.message)

    def _emit(self, action: act.Emit) -> None:
        pass

    def _stop(self, action: act.Stop) -> None:
        if action.failed and self.lie is None:
            self.world.watch.gives_up(self.label, action.reason)
        self.alive = False
        self.finished = self.core.finished or not self.core.leaving
        if not self.finished:
            self.world.watch.leaves(self)
        if self.house is not None and not self.leaving and not self.finished:
            self.house.left(self)
        self.world.network.process_died(self)

    def _open_seats(self, action: act.OpenSeats) -> None:
        assert self.house is not None, "only who takes further peers on is asked to"
        self.house.wanted(action.seats)

    def _begin(self, action: act.Begin) -> None:
        self.world.watch.began(self, action)
        self._pass = action.pass_id
        self._codecs = action.codecs
        self._nonfinite = action.nonfinite
        if action.codecs:
            self.world.at(self.world.now + _SMALL_S, self, self._measured())
        self._accumulator = 0
        self._inputs.clear()
        self._staged.clear()
        self._queue.cancel(lambda of: not isinstance(of, act.Apply))
        if action.kind is not PassKind.TRAIN:
            self.world.on_phase("evaluating", self)

    def _measured(self) -> act.LinksMeasured:
        """Links are as they happen to be, some with a limit, some with none and not measured."""
        draw = self.world.random.choice
        known = [LinkRate(actor, draw(RATES)) for actor in self.world.by_actor if draw((True, False))]
        return act.LinksMeasured(draw((None, *RATES)), tuple(known))

    def _discard(self, action: act.Discard) -> None:
        self._inputs.pop(action.microbatch, None)
        for end in End:
            self._staged.pop(BaseKey(action.pass_id.step, action.microbatch, end), None)
        m = action.microbatch
        self._queue.cancel(lambda of: isinstance(of, act.Forward) and of.microbatch == m, running=False)

    # ------------------------------------------------------------ computing

    def _forward(self, action: act.Forward) -> None:
        if self._swallowed("work"):
            return
        self.world.watch.works_on(self, action.pass_id, "a forward")
        seconds = _FORWARD_S
        if action.kind is PassKind.TRAIN:
            self.world.on_phase("forward", self)
            if self.stage == self.world.settings.stages - 1:
                seconds += _BACKWARD_S
                self.world.on_phase("backward", self)
        self._queue.add(Priority.FORWARD, action, self._forwarded, seconds)

    def _forwarded(self, action: act.Forward) -> None:
        if self.fails_next:
            self._fail(action)
            return
        if self._overflows(action.pass_id):
            self._fail(action, nonfinite=True)
            return
        assert self.stage is not None
        stages = self.world.settings.stages
        payload = self._crossed(action)
        output = forward_payload(self.stage, self.state, payload)
        if self.stage < len(self._codecs):
            output = coded(output, self._codecs[self.stage].forward)
        seconds = _FORWARD_S * self.slowness
        m = action.microbatch
        if action.kind is PassKind.TRAIN and self._lies("activations"):
            output = mix(output)
        if self.stage < stages - 1:
            self._inputs[m] = payload
            self.feed(self._sent(action, output, seconds))
        elif action.kind is PassKind.TRAIN:
            self.feed(self._accumulated(action.pass_id, m, payload, loss_gradient(output)))
        else:
            self.feed(act.ResultDone(action.pass_id, m, loss_of(output), token_of(output)))

    def _crossed(self, action: act.Forward) -> int:
        """The activation that came in, reconstructed."""
        payload = self._payload(action.payload)
        if action.decode_with is not None:
            payload = change(payload, self._base(action.decode_with))
        if self.stage and self._remembers(action.kind):
            self._staged[BaseKey(action.pass_id.step, action.microbatch, End.RECEIVED)] = payload
        return payload

    def _sent(self, action: act.Forward, output: int, seconds: float) -> act.ForwardDone:
        """The activation that goes out, as a change if there is a base."""
        pass_id, m = action.pass_id, action.microbatch
        if not self._remembers(action.kind):
            return act.ForwardDone(pass_id, m, output, seconds)
        received, key = self._received(pass_id, m), BaseKey(pass_id.step, m, End.SENT)
        if action.encode_with is None:
            self._staged[key] = whole = rounded(output)
            return act.ForwardDone(pass_id, m, whole, seconds, None, received, reconstruction_digest(whole))
        base = self._base(action.encode_with)
        self._staged[key] = whole = rounded_since(output, base)
        digest = reconstruction_digest(whole)
        return act.ForwardDone(pass_id, m, change(whole, base), seconds, whole, received, digest)

    def _remembers(self, kind: PassKind) -> bool:
        return kind is PassKind.TRAIN and self.world.visits is not None

    def _received(self, pass_id: PassId, m: Microbatch) -> int:
        """Digest of the activation that came in; 0 where nothing is remembered."""
        key = BaseKey(pass_id.step, m, End.RECEIVED)
        return reconstruction_digest(self._staged[key]) if key in self._staged else 0

    def _base(self, key: BaseKey) -> int:
        if key not in self._bases:
            raise Violation("contract", f"{self.label} needs {key}, which it does not have")
        return self._bases[key]

    def _settle_bases(self, action: act.SettleBases) -> None:
        for key in action.dropped:
            self._bases.pop(key, None)
        for key in action.kept:
            self._bases[key] = self._staged[key]
        self._staged.clear()

    def _backward(self, action: act.Backward) -> None:
        if self._swallowed("work"):
            return
        self.world.watch.works_on(self, action.pass_id, "a backward")
        self.world.on_phase("backward", self)
        self._queue.add(Priority.BACKWARD, action, self._backwarded, _BACKWARD_S)

    def _backwarded(self, action: act.Backward) -> None:
        if self.fails_next:
            self._fail(action)
            return
        if self._overflows(action.pass_id):
            self._fail(action, nonfinite=True)
            return
        payload = self._inputs.pop(action.microbatch, None)
        if payload is None:
            raise Violation("contract", f"{self.label}: backward of m{action.microbatch}, which was not forwarded here")
        self.feed(self._accumulated(action.pass_id, action.microbatch, payload, self._payload(action.payload)))

    def _accumulated(self, pass_id: PassId, m: Microbatch, payload: int, gradient: int) -> act.BackwardDone:
        assert self.stage is not None
        count = self.world.settings.microbatches
        self.world.watch.accumulates(self, pass_id, m)
        self._accumulator += weight_gradient(self.stage, self.state, payload, gradient, m, count)
        back = backward_payload(self.stage, self.state, payload, gradient) if self.stage else None
        if self._lies("sums"):
            self._accumulator += _LIE
        if back is not None and self._lies("gradients"):
            back = mix(back)
        if back is not None and self._codecs:
            back = coded(back, self._codecs[self.stage - 1].backward)
        received = self._received(pass_id, m)
        last = self.stage == self.world.settings.stages - 1
        seconds = (_FORWARD_S + _BACKWARD_S if last else _BACKWARD_S) * self.slowness
        return act.BackwardDone(pass_id, m, back, seconds, received)

    # ------------------------------------------------------------ reducing

    def _encode_part(self, action: act.EncodePart) -> None:
        if self._swallowed("work"):
            return
        self.world.watch.reduces(self, action.attempt)
        self.world.on_phase("reduce", self)
        self._queue.add(Priority.CONTROL, action, self._part_encoded, _SMALL_S)

    def _part_encoded(self, action: act.EncodePart) -> None:
        self.feed(act.PartEncoded(action.attempt, action.bucket, self._share(action)))

    def _sum_bucket(self, action: act.SumBucket) -> None:
        if self._swallowed("work"):
            return
        self.world.watch.reduces(self, action.attempt)
        self.world.on_phase("reduce", self)
        self._queue.add(Priority.CONTROL, action, self._bucket_summed, _SMALL_S)

    def _bucket_summed(self, action: act.SumBucket) -> None:
        if action.parts:
            total = self._share(action) + sum(map(self._payload, action.parts))
            total = self._compressed(action, total, of_sum=True)
        else:
            total = bucket_share(self._accumulator, action.bucket)
        if self._lies("totals"):
            total += _LIE
        self.feed(act.BucketSummed(action.attempt, action.bucket, total))

    def _lies(self, what: str) -> bool:
        """Whether it gives others something wrong just now."""
        lie = self.lie
        if lie is None or lie.about != what:
            return False
        if lie.shy and len(self.core.stint.walk.table.roster) < self.world.settings.replicas:
            return False
        return self.world.random.random() < lie.how_often

    def _share(self, action: act.EncodePart | act.SumBucket) -> int:
        first = set(range(self.world.first_round))
        summed = self._buffer if self._buffer_of == action.attempt else {}
        if action.bucket not in first and not first.issubset(summed):
            raise Violation("contract", f"{self.label} is to compute bucket {action.bucket} before the first round")
        return self._compressed(action, bucket_share(self._accumulator, action.bucket), of_sum=False)

    def _compressed(self, action: act.EncodePart | act.SumBucket, value: int, *, of_sum: bool) -> int:
        """What of `value` crosses; what that loses is pending."""
        if not self.world.settings.averages_compressed:
            return value
        place = (of_sum, action.bucket)
        if action.carried:
            if self._residuals_for != action.attempt.pass_id.version:
                raise Violation("contract", f"{self.label} needs residuals in {action.attempt}, which it does not have")
            value += self._residuals.get(place, 0)
        if self._pending_of != action.attempt:
            self._pending_of, self._pending = action.attempt, {}
        crossed, self._pending[place] = compressed(value)
        return crossed

    def _store_sum(self, action: act.StoreSum) -> None:
        self.world.watch.reduces(self, action.attempt)
        if self._buffer_of != action.attempt:
            self._buffer_of = action.attempt
            self._buffer = {}
        payload = self._payload(action.payload)
        if self.flips_next:
            self.flips_next = False
            payload ^= 1 << self.world.random.randrange(64)
        self._buffer[action.bucket] = payload

    def _assemble(self, action: act.Assemble) -> None:
        self.world.watch.reduces(self, action.attempt)
        self._queue.add(Priority.CONTROL, action, self._assembled, _SMALL_S)

    def _assembled(self, action: act.Assemble) -> None:
        assert self.stage is not None
        sums = self._reduced(action.attempt)
        ordered = tuple(sums[bucket] for bucket in sorted(sums))
        self.feed(
            act.Assembled(
                action.attempt,
                reduced_digest(self.stage, sums),
                squared_norm_of(self.stage, ordered),
                loss_sum_of(self.stage, self.world.settings.stages, ordered),
                finite=self.world.watch.is_finite(self.stage, action.attempt.pass_id),
                shared=shared_digest(ordered[: self._shared(self.stage)]),
            )
        )
        if self.alive:
            self.world.on_phase("prepared", self)

    def _restore_sums(self, action: act.RestoreSums) -> None:
        self._queue.cancel(lambda of: isinstance(of, act.Forward | act.Backward))
        self._buffer_of, self._buffer = action.attempt, self.loans.spooled(action.attempt.pass_id.step)
        self._queue.add(Priority.CONTROL, action, self._restored, _SMALL_S)

    def _restored(self, action: act.RestoreSums) -> None:
        assert self.stage is not None
        self.feed(act.Assembled(action.attempt, reduced_digest(self.stage, self._reduced(action.attempt)), 0.0, 0.0))

    def spoil_step(self, for_good: bool) -> None:
        """The gradient of this stage in the open step is not finite: in this term only, or whenever it is computed."""
        if self.stage is not None and self._pass is not None and self._pass.index == 0:
            self.world.watch.spoilt[self.stage, self._pass.step] = None if for_good else self._pass.term

    def overflow(self, for_good: bool) -> None:
        """What is computed here for a neighbour is not finite: in this step whoever does it, or this peer and once."""
        if not for_good:
            self.overflows_next = True
        elif self.stage is not None and self._pass is not None and self._pass.index == 0:
            self.spoil_step(for_good=True)
            self.world.watch.overflowing.add((self.stage, self._pass.step))

    def _overflows(self, pass_id: PassId) -> bool:
        """Whether what was just computed cannot be sent."""
        if pass_id.index or self._nonfinite:
            return False
        found = self.overflows_next or (self.stage, pass_id.step) in self.world.watch.overflowing
        self.overflows_next = False
        if found:
            self.world.watch.found_nonfinite(pass_id)
        return found

    def _cancel_reduce(self, action: act.CancelReduce) -> None:
        void = action.attempt
        self._queue.cancel(lambda of: getattr(of, "attempt", None) == void and not isinstance(of, act.Apply))
        if self._buffer_of == action.attempt:
            self._buffer_of = None
            self._buffer = {}
        if self._pending_of == action.attempt:
            self._pending_of, self._pending = None, {}

    def _reduced(self, attempt: Attempt) -> dict[int, int]:
        """The separate buffer, which must be that of `attempt` and whole."""
        assert self.stage is not None
        if self._buffer_of != attempt or len(self._buffer) != buckets_of(self.stage, self._shared(self.stage)):
            raise Violation("contract", f"{self.label} wants {attempt}; its buffer is of {self._buffer_of}")
        return self._buffer

    def _shared(self, stage: int) -> int:
        return shared_buckets(self.world.settings, stage)

    # ------------------------------------------------------------ state

    def _apply(self, action: act.Apply) -> None:
        if self.holding != action.decision.step:
            raise Violation("atomic", f"{self.label} orders step {action.decision.step} at version {self.holding}")
        self._reduced(action.attempt)
        self.holding += 1
        self.world.on_phase("applying", self)
        self._queue.add(Priority.CONTROL, action, self._applied, _APPLY_S)

    def _applied(self, action: act.Apply) -> None:
        if self.fails_next:
            self._fail(action)
            return
        assert self.stage is not None and self.version is not None
        sums = self._reduced(action.attempt)
        ordered = tuple(sums[bucket] for bucket in sorted(sums))
        self.state = stepped_state(self.stage, self.state, ordered, action.decision.scale)
        self.version += 1
        left = self._pending_of == action.attempt and not action.decision.skip
        self._residuals, self._residuals_for = (self._pending if left else {}), self.version
        self.loans.applied(action.attempt, sums)
        self.world.watch.applied(self, action.decision, sums)
        self.feed(act.AppliedStep(action.decision.step, state_digest(self.stage, self.version, self.state)))
        if self.alive:
            self.world.on_phase("before open", self)

    def _load_state(self, action: act.LoadState) -> None:
        self._load += 1
        self._queue.cancel(lambda of: True)
        self.stage, self.version, self.holding = action.stage, None, None
        self._bases.clear()
        self._staged.clear()
        self.loans.clear()
        self.world.on_phase("joining", self)
        delay = _LOAD_S * (0.5 + self.world.random.random())
        self.world.at(self.world.now + delay, self, (self._fetch, (self._load, action)))

    def _fetch(self, request: tuple[int, act.LoadState]) -> None:
        """Half of the load time is over: the source, if there is one, takes its snapshot now."""
        load, action = request
        if load != self._load:
            return
        if action.donors:
            self.loans.download(action)
            return
        key = (action.stage, action.version)
        state: int | None = None
        source: Process | None = None
        if action.from_archive:
            assert action.source is not None
            source = self.world.by_actor[action.source]
            state = source.archived(key)
        elif action.source is not None:
            source = self.world.by_actor.get(action.source)
            state = source.snapshot(*key) if isinstance(source, SimPeer) else None
        elif action.version == 0:
            if self.world.settings.imported:
                raise Violation("contract", f"{self.label} is to initialise version 0, which is imported")
            state = initial_state(action.stage)
        delay = _LOAD_S * (0.5 + self.world.random.random())
        if source is not None and (source.stalled or self.world.network.cut(self, source)):
            state, delay = None, _FETCH_TIMEOUT_S
        self.world.at(self.world.now + delay, self, (self._fetched, (load, action, source, state)))

    def _fetched(self, result: tuple[int, act.LoadState, Process | None, int | None]) -> None:
        load, action, source, state = result
        if load != self._load:
            return
        self.loaded(action, None if source is not None and not source.alive else state)

    def loaded(self, action: act.LoadState, state: int | None) -> None:
        """The end of a LoadState. `state` None: it could not be had."""
        if state is None:
            self.feed(act.StateFailed(action.stage, action.version, "the source does not have it or does not answer"))
            return
        self.version, self.holding, self.state = action.version, action.version, state
        self._buffer_of, self._buffer = None, {}
        self._residuals, self._residuals_for = {}, None
        self.world.watch.holds(self)
        shared = self._shared(action.stage)
        buckets = buckets_of(action.stage, shared)
        self.feed(act.StateLoaded(action.stage, action.version, buckets, self.world.first_round, shared))
        if self.alive:
            self.world.on_phase("before open", self)

    def snapshot(self, stage: int, version: int) -> int | None:
        """What this peer gives to another one: its state, or a checkpoint of it, if it has that version."""
        if not self.alive:
            return None
        if self.stage == stage and self.version == version:
            return self.state
        return self.disk.checkpoints.get((stage, version))

    def _save_checkpoint(self, action: act.SaveCheckpoint) -> None:
        assert self.stage is not None
        if self.version != action.version:
            raise Violation("contract", f"{self.label} wants a checkpoint of version {action.version}")
        self.world.on_phase("checkpointing", self)
        done = self.world.now + _SAVE_S * (0.5 + self.world.random.random())
        self.world.at(done, self, (self._saved, (self.stage, action.version, self.state)))

    def _saved(self, snapshot: tuple[int, int, int]) -> None:
        stage, version, state = snapshot
        self.disk.checkpoints[stage, version] = state
        self.feed(act.CheckpointSaved(version, state_digest(stage, version, state)))

    # ------------------------------------------------------------ failing

    def _fail(self, action: act.Forward | act.Backward | act.Apply, nonfinite: bool = False) -> None:
        """An exception half way: garbage stays behind in the accumulator, or in the parameters."""
        self.fails_next = False
        if isinstance(action, act.Apply):
            self.state, self.version, self.holding = -1, None, None
            self.feed(act.ComputeFailed(action.attempt.pass_id, None, "out of memory"))
        else:
            self._accumulator += 1 << 3
            self.world.watch.raised(self, action.pass_id, action.microbatch, nonfinite)
            reason = "not finite" if nonfinite else "out of memory"
            self.feed(act.ComputeFailed(action.pass_id, action.microbatch, reason, nonfinite))

    def _payload(self, payload: object) -> int:
        if not isinstance(payload, int):
            raise Violation("contract", f"{self.label} was given the payload {payload!r}")
        return payload
