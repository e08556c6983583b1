"""The engine: it executes the core's compute actions for one stage, in its own thread.

The driver submits actions from any thread. The results are posted as inputs of the core. The order of priority is:
reduce and apply, then backward, then forward, then the gradients of the weights that a backward has deferred.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import torch

from swarm.buffer import Buffer
from swarm.codecs import UnknownCodec
from swarm.compute.actions import (
    ComputeAction,
    described,
    failure,
    is_before,
    is_cancelled,
    is_discarded,
    is_stale,
)
from swarm.compute.arrivals import Arrivals
from swarm.compute.averaging import buckets_of
from swarm.compute.backlog import Urgency
from swarm.compute.body import BodyFormat, FrameError
from swarm.compute.compute_thread import TIMED, ComputeThread, Launched, warn
from swarm.compute.device_clock import DeviceClock, Mark
from swarm.compute.layout import Layout
from swarm.compute.live_state import LiveState
from swarm.compute.meter import Meter
from swarm.compute.reduction import Buckets
from swarm.compute.shortage import first_line, out_of_memory
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.compute.turns import Turns
from swarm.manifest import RunManifest
from swarm.protocol.ids import Attempt, Direction, FrameKey, PartKey, SumKey
from swarm.protocol.peer.io import (
    Apply,
    Assemble,
    Backward,
    Begin,
    BucketSummed,
    CancelReduce,
    ComputeFailed,
    Discard,
    EncodePart,
    Forward,
    MemoryShort,
    PartEncoded,
    PeerInput,
    SettleBases,
    ShowState,
    StateShown,
    StoreSum,
    SumBucket,
    Weights,
)

_Finish = Callable[[], Callable[[], PeerInput]]
"""As in stage.py: the first call waits for the device, the second call finishes the result in any thread."""
_Value = TypeVar("_Value")
_Action = TypeVar("_Action", Forward, Backward, Weights)
_USUAL = StageOptions()


class StageEngine:
    """Computes stage `stage` of the run, with its `state`. There is no state until it is initialised or loaded.

    `post`: receives the core's inputs, from one thread, in order.
    `threads`: of torch. `turns`: microbatches are computed in these turns; None: at any time.
    """

    def __init__(
        self,
        manifest: RunManifest,
        stage: int,
        options: StageOptions = _USUAL,
        *,
        post: Callable[[PeerInput], None],
        threads: int = 1,
        turns: Turns | None = None,
    ) -> None:
        self._manifest = manifest
        self._index = stage
        self._options = options
        self._turns = turns
        device = torch.device(options.device)
        self._clock = DeviceClock(device)
        self._post = post
        self._format = BodyFormat(manifest)
        layout = self._layout()
        self._buckets = buckets_of(layout, manifest.sums)
        self._whole_buckets = Buckets(layout, manifest.sums).count
        self._relieved = False
        """True if memory ran out once, and the engine has already freed what it could."""
        self._starved = 0
        self._ahead = self._clock.asynchronous and type(self)._compute is StageEngine._compute
        """True if the device receives a microbatch before it has finished the previous one."""
        self._arrivals = Arrivals(device, f"arrivals-{stage}")
        self._begun: Begin | None = None  # written by `submit`, so that stale work is refused at once
        self._thread = ComputeThread(
            stage, self, post=post, clock=self._clock, threads=threads, turns=turns, ahead=self._ahead
        )
        self.state = LiveState(stage, self._thread, self._built)
        """The stage's parameters and the optimizer's state, and the stage that computes with them."""
        self._thread.start()

    @property
    def buckets(self) -> int:
        """Number of buckets into which the stage's gradient is divided."""
        return self._buckets.count

    @property
    def whole_buckets(self) -> int:
        """Number of buckets that an uncompressed gradient would have."""
        return self._whole_buckets

    @property
    def first_round(self) -> int:
        """Number of buckets that must be reduced before the others can be computed."""
        return self._buckets.first_round

    @property
    def shared_buckets(self) -> int:
        """Number of buckets, from the first, that another stage's gradient shares."""
        return self._buckets.shared

    @property
    def meter(self) -> Meter:
        """Measures the work of the compute thread."""
        return self._thread.meter

    # ------------------------------------------------ for the driver

    def submit(self, action: ComputeAction) -> None:
        """Order work, and return at once. Work that does not belong to the current pass is dropped."""
        match action:
            case Begin():
                self._begin(action)
                self._arrivals.begin(action.pass_id)
                self._thread.drop(self._is_stale)
            case Discard():
                self._arrivals.discard(action)
                self._thread.drop(lambda queued: is_discarded(queued, action))
            case CancelReduce():
                self._thread.drop(lambda queued: is_cancelled(queued, action.attempt))
        if self._is_stale(action):
            return
        if self._ahead and isinstance(action, Forward | Backward):
            self._arrivals.expect(action)
        self._thread.push(action)

    def _begin(self, action: Begin) -> None:
        """From now on, accept the frames and work of this pass. If its codecs cannot be used, accept no frames and no
        work.
        """
        self._begun = None
        try:
            self._format = self._format.of_pass(action.codecs, action.nonfinite)
        except UnknownCodec as error:
            self._post(ComputeFailed(action.pass_id, None, str(error)))
        else:
            self._begun = action

    def _is_stale(self, action: ComputeAction) -> bool:
        return is_stale(action, None if self._begun is None else self._begun.pass_id)

    def check_frame(self, key: FrameKey, payload: object, *, changed: bool = False) -> None:
        """Raise FrameError for a frame that cannot be used. May be called from any thread, before the core sees the
        frame.

        `changed`: the payload is the change since an earlier frame.
        """
        begun = self._begun
        kind = begun.kind if begun is not None and begun.pass_id == key.pass_id else None
        if kind is None and self._manifest.codec.auto:
            return  # of another pass, whose codecs may differ; the core does not use the frame
        if changed and key.direction is Direction.FORWARD and isinstance(payload, Buffer):
            self._format.check_change(key.boundary, payload, kind)
            return
        stage = self.state.stage
        sent = None if stage is None or kind is None else stage.sent.get(key.microbatch)
        self._format.check(key.boundary, key.direction, payload, kind, sent)

    def check_bucket(self, key: PartKey | SumKey, payload: object) -> None:
        """Raise FrameError for a part or sum of the wrong size or outside the grid. May be called from any thread."""
        if key.attempt.stage != self._index:
            raise FrameError(f"the bucket is of stage {key.attempt.stage}, but this peer holds stage {self._index}")
        self._buckets.check(key.bucket, payload)

    def limit_graphs(self, budget_bytes: int) -> None:
        """Change the memory budget of the autograd graphs. May be called from any thread."""
        self._options = replace(self._options, graph_budget_bytes=budget_bytes)
        self.state.limit_graphs(budget_bytes)

    def close(self) -> None:
        """Finish the current task, drop the others, end the thread, and free the state. Incomplete copies are given
        up.
        """
        self._thread.stop()
        self.state.give_up_copies()
        self._arrivals.close()
        self._thread.join()
        self.state.free()  # whoever still refers to this engine does not keep its tensors

    # ------------------------------------------------ the sums of a step

    def written(self, attempt: Attempt, take: Callable[[Iterable[Buffer]], _Value]) -> Future[_Value]:
        """Call `take` in the compute thread with an attempt's reduced sums, uncompressed, bucket by bucket, and return
        its result.

        Call it before the step is applied.
        """
        return self._thread.call(lambda: take(self.state.held().reduction.written(attempt)))

    def restore(self, attempt: Attempt, sums: Sequence[Buffer], whole: bool) -> None:
        """Use these sums of all buckets as those of `attempt`; the core receives Assembled. Work of that pass and
        older passes is dropped.

        `whole`: the sums were produced by `written`, uncompressed, although the run compresses sums.
        """
        self._thread.drop(lambda action: is_before(action, attempt))
        if whole:
            self._thread.call(lambda: self.state.held().reduction.restore(attempt, sums)).add_done_callback(
                lambda done: self._restored(attempt, done)
            )
            return
        for bucket, payload in enumerate(sums):
            self.submit(StoreSum(attempt, bucket, payload))
        self.submit(Assemble(attempt))

    def _restored(self, attempt: Attempt, done: Future[None]) -> None:
        if done.cancelled():  # the engine closes
            return
        if (error := done.exception()) is None:
            self.submit(Assemble(attempt))
        else:
            self._post(ComputeFailed(attempt.pass_id, None, str(error)))

    # ------------------------------------------------ rehearsals of faults

    def starve(self) -> None:
        """Make the next microbatch run out of memory."""
        self._starved += 1

    def overflow(self) -> None:
        """Make all further gradients for the previous stage finite but far too large, as a lying peer would."""
        self.state.held().overflows = True

    def flip_bit(self) -> None:
        """Flip the sign of the first parameter at once, as a memory error would."""
        stage = self.state.held()
        next(iter(stage.parameters.values())).data.view(-1)[:1].neg_()  # invisible to autograd

    # ------------------------------------------------ for emulated and paced engines to replace

    def _layout(self) -> Layout:
        return Layout.of_stage(self._manifest.model, self._index)

    def _build(self, initialised: bool) -> Stage:
        return Stage(self._manifest, self._index, self._options, initialised=initialised, clock=self._clock)

    def _compute(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        if self._turns is None:
            return run(action)
        begun = time.perf_counter()
        with self._turns.turn():
            self._thread.waited_s = time.perf_counter() - begun
            return run(action)

    # ------------------------------------------------ the compute thread: see `Executor`

    def carry_out(self, action: ComputeAction) -> PeerInput | Launched | None:
        """Execute an action. If memory runs out, free what can be freed and repeat the action, at most once for each
        engine.
        """
        done, error = self._attempt(action)
        if error is not None and out_of_memory(error):
            again = self._relieve(action, error) and not self._is_void(action)
            if again:
                done, error = self._attempt(action)
                if error is not None and out_of_memory(error):
                    self._relieve(action, error)
        return done if error is None else failure(action, error)

    def needs_room(self) -> bool:
        return self.state.stage is not None and self.state.stage.is_crowded

    def turned_at(self) -> Mark | None:
        return None if self.state.stage is None else self.state.stage.turned

    def _attempt(self, action: ComputeAction) -> tuple[PeerInput | Launched | None, Exception | None]:
        """Return the result or the error. The error has no traceback, because its frames would keep memory alive."""
        try:
            return self._carry_out(action), None
        except Exception as error:
            warn(action, error)
            return None, error.with_traceback(None)

    def _relieve(self, action: ComputeAction, error: Exception) -> bool:
        """Free what can be freed, and tell the core. Return True if this is the first time."""
        first, self._relieved = not self._relieved, True
        before, now = (0, 0) if self.state.stage is None else self.state.stage.relieve()
        gc.collect()
        if self._options.device.startswith("cuda"):
            torch.cuda.empty_cache()
        self._thread.tell(MemoryShort(f"{described(action)}: {first_line(error)}", before, now))
        return first

    def _is_void(self, action: ComputeAction) -> bool:
        """Return True if the failed attempt may have left partial work. Then this peer leaves the pass or loads the
        state again.
        """
        match action:
            case Forward() | Backward() | Weights():
                return self.state.stage is None or not self.state.stage.intact
            case EncodePart() | SumBucket() | StoreSum() | Assemble():
                return self._manifest.sums.compresses  # the residuals of compression have changed
            case _:
                return True

    def _carry_out(self, action: ComputeAction) -> PeerInput | Launched | None:
        stage = self.state.held()
        if self._starved and isinstance(action, Forward | Backward):
            self._starved -= 1
            raise MemoryError("a rehearsal: out of memory")
        match action:
            case Begin():
                self._clock.set()
                stage.begin(action.codecs, action.nonfinite)
            case Discard():
                stage.discard(action)
            case Forward():
                return self._launched_by(stage.launch_forward, action) or self._timed(stage.forward, action)
            case Backward():
                return self._launched_by(stage.launch_backward, action) or self._timed(stage.backward, action)
            case Weights():
                return self._launched_by(stage.launch_weights, action) or self._timed(stage.weights, action)
            case EncodePart():
                return PartEncoded(action.attempt, action.bucket, stage.reduction.part(action))
            case SumBucket():
                return BucketSummed(action.attempt, action.bucket, stage.reduction.sum(action))
            case StoreSum():
                stage.reduction.store(action.attempt, action.bucket, action.payload)
            case Assemble():
                done = stage.reduction.assemble(action.attempt)
                if self._manifest.audit.every:
                    done = stage.reduction.sketched(done, outlined=self._manifest.outlines)
                return replace(done, state=stage.optimizer.checksum(), **stage.optimizer.condition()._asdict())
            case CancelReduce():
                stage.reduction.cancel(action.attempt)
            case Apply():
                self.state.settle()
                return stage.apply(action)
            case SettleBases():
                stage.bases.settle(action)
            case ShowState(version, nonce):
                is_held = stage.optimizer.version == version
                return StateShown(version, nonce, stage.optimizer.checksum(nonce) if is_held else None)
        return None

    def _launched_by(self, launch: Callable[[_Action, Buffer | None], _Finish], action: _Action) -> Launched | None:
        """Launch an action. None if the thread must wait for each result: on a CPU, or at a set pace."""
        if not self._ahead:
            return None
        body = self._arrivals.of(action)
        stage, begun = self.state.held(), self._clock.mark()
        before = stage.turned
        finish = launch(action, body)
        turned = stage.turned if stage.turned is not before else None
        return Launched(action, finish, begun, self._clock.mark(), turned, body)

    def _timed(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        start = time.perf_counter()
        done = self._compute(run, action)
        if isinstance(done, TIMED):
            return replace(done, seconds=time.perf_counter() - start)
        return done

    def _built(self, initialised: bool) -> Stage:
        """Build the stage, ready to compute."""
        stage = self._build(initialised)
        stage.reduction.coming = self._queued_orders
        if self._options.compiled:
            stage.warm_up(self._manifest)
        return stage

    def _queued_orders(self) -> list[EncodePart | SumBucket]:
        """The queued actions of a reduction."""
        return [task for task in self._thread.queued(Urgency.REDUCE) if isinstance(task, EncodePart | SumBucket)]
