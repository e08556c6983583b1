"""The engine: one compute thread that owns the device and carries out the core's compute actions.

The driver submits actions from any thread; what comes of them is posted as inputs of the core. Reduce and apply go
first, then backward, then forward, then the weights' gradients that a backward has left due. An exception is posted as
ComputeFailed and the thread lives on.

A GPU has two microbatches to work on. Two more threads handle the bodies: one copies those that have come to where the
device reads them, the other one joins those that go out, and posts in the compute thread's order.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from swarm.buffer import Buffer
from swarm.codecs import CodecError, Reason, UnknownCodec
from swarm.compute.arrivals import Arrivals
from swarm.compute.averaging import buckets_of
from swarm.compute.backlog import Backlog, Urgency
from swarm.compute.body import BodyFormat, FrameError
from swarm.compute.device_clock import DeviceClock, Mark
from swarm.compute.held import HeldState, Holds
from swarm.compute.meter import APPLYING, BACKWARD, FORWARD, REDUCING, Meter
from swarm.compute.optimizer import StageState
from swarm.compute.precision import Precision
from swarm.compute.reduction import Buckets
from swarm.compute.shortage import out_of_memory
from swarm.compute.stage import Stage
from swarm.compute.sums import Layout
from swarm.compute.turns import Turns
from swarm.manifest import RunManifest
from swarm.protocol.ids import Attempt, Direction, FrameKey, Microbatch, PartKey, PassId, SumKey
from swarm.protocol.peer.io import (
    Apply,
    Assemble,
    Backward,
    BackwardDone,
    Begin,
    BucketSummed,
    CancelReduce,
    ComputeFailed,
    Discard,
    EncodePart,
    Forward,
    ForwardDone,
    MemoryShort,
    PartEncoded,
    PeerInput,
    SettleBases,
    ShowState,
    StateShown,
    StoreSum,
    SumBucket,
    Weights,
    WeightsDone,
)

ComputeAction = (
    Begin
    | Forward
    | Backward
    | Weights
    | Discard
    | EncodePart
    | SumBucket
    | StoreSum
    | Assemble
    | CancelReduce
    | Apply
    | SettleBases
    | ShowState
)

_JOIN_TIMEOUT_S = 30.0
_Task = Forward | Backward | Weights
_Finish = Callable[[], Callable[[], PeerInput]]
"""As stage.py has it."""
_Value = TypeVar("_Value")
_Action = TypeVar("_Action", Forward, Backward, Weights)
_TIMED = (ForwardDone, BackwardDone, WeightsDone)
_log = logging.getLogger(__name__)


class StageEngine:
    """Computes stage `stage` of the run. Holds nothing until `initialise` or `load_state`.

    `post` is called from one thread, in order. `graph_budget_bytes` bounds the autograd graphs kept between forward and
    backward; 0 recomputes every forward. `turns`: those in which microbatches are computed; without, at any time.
    `updates_on_cpu`: the optimizer's steps are made there, wherever all else is computed. `precision` None: what is
    usual on the device. `compiled`: layers are compiled by torch before anything is computed. `splits`: backwards leave
    the weights' gradients due within the same budget; they are computed when there is nothing else to do.
    `recomputes_layers`: a graph holds only what goes into each layer, since a whole one has no room. Not with
    `compiled`: torch runs a compiled layer otherwise when it computes it again, and its bits differ.
    """

    def __init__(
        self,
        manifest: RunManifest,
        stage: int,
        *,
        post: Callable[[PeerInput], None],
        device: str = "cpu",
        threads: int = 1,
        graph_budget_bytes: int = 1 << 30,
        turns: Turns | None = None,
        updates_on_cpu: bool = False,
        precision: Precision | None = None,
        compiled: bool = False,
        splits: bool = False,
        recomputes_layers: bool = False,
    ) -> None:
        self._manifest = manifest
        self._index = stage
        self._device = device
        self._threads = threads
        self._graph_budget_bytes = graph_budget_bytes
        self._turns = turns
        self._updates_on_cpu = updates_on_cpu
        self._precision = precision
        self._compiled = compiled
        self._clock = DeviceClock(torch.device(device))
        self._splits = splits
        self._recomputes_layers = recomputes_layers
        self._post = post
        self._format = BodyFormat(manifest)
        layout = self._layout()
        self._buckets = buckets_of(layout, manifest.sums)
        self._whole_buckets = Buckets(layout, manifest.sums).count
        self._stage: Stage | None = None
        self._waited_s = 0.0
        """How long the task in hand waited for its turn."""
        self._relieved = False
        """There was no memory once, and what could be given up has been."""
        self._starved = 0
        self._holds = Holds()
        self._coming: Stage | None = None
        """Tensors for a state that is on its way."""
        self._ahead = self._clock.asynchronous and type(self)._compute is StageEngine._compute
        """Whether the device is given a microbatch before it has done the one before."""
        self._launched: _Launched | None = None
        """What the device is doing."""
        self._arrivals = Arrivals(torch.device(device), f"arrivals-{stage}")
        self._departures = ThreadPoolExecutor(1, f"departures-{stage}", torch.set_num_threads, (threads,))
        """Joins bodies and posts, where the compute thread works ahead."""
        self._free_at = 0.0
        """When the device was done with what it was given last."""
        self.meter = Meter()
        """What the compute thread does."""
        self._begun: Begin | None = None  # written by `submit`, so that stale work is refused at once
        self._backlog: Backlog[ComputeAction | _Call] = Backlog()
        self._thread = threading.Thread(target=self._work, name=f"compute-{stage}", daemon=True)
        self._thread.start()

    @property
    def buckets(self) -> int:
        """Into how many buckets the stage's gradient is divided."""
        return self._buckets.count

    @property
    def whole_buckets(self) -> int:
        """Into how many buckets the gradient would be divided if nothing were compressed."""
        return self._whole_buckets

    @property
    def first_round(self) -> int:
        """The number of buckets that are reduced before the others can be computed."""
        return self._buckets.first_round

    @property
    def shared_buckets(self) -> int:
        """How many of them, from the first, another stage's gradient begins with too."""
        return self._buckets.shared

    @property
    def version(self) -> int | None:
        """Steps applied; None while no state is held."""
        return None if self._stage is None else self._stage.optimizer.version

    def limit_graphs(self, budget_bytes: int) -> None:
        """So many bytes of graphs are kept from now on. From any thread."""
        self._graph_budget_bytes = budget_bytes
        for stage in (self._stage, self._coming):
            if stage is not None:
                stage.limit_graphs(budget_bytes)

    def initialise(self) -> Future[None]:
        """Take up version 0: initial parameters by (seed, tensor name)."""
        return self._call(self._initialise)

    def prepare(self) -> None:
        """Make the stage's tensors, while a state is on its way: that takes longer than to copy it into them.

        If that fails, so does `load_state`.
        """
        self._call(self._prepare)

    def load_state(self, state: StageState) -> Future[None]:
        """Continue from `state`. The future raises StateError, with nothing changed, when it does not fit."""
        return self._call(lambda: self._load(state))

    def snapshot(self) -> Future[StageState]:
        """A copy of one version's full state, in memory."""
        return self._call(lambda: self._held().optimizer.state())

    def copied(self, copy: Callable[[HeldState], _Value]) -> Future[_Value]:
        """What `copy` makes of one version's full state, for checkpoints and for other peers, in a thread of its own.

        The state is not copied in memory: until `copy` has had all of it, the next step is not applied.
        """
        copied: Future[_Value] = Future()

        def begin() -> None:
            held = self._held().optimizer.hold(self._holds)
            if not copied.set_running_or_notify_cancel():
                held.release()
                return
            threading.Thread(target=_copy, args=(held, copy, copied), name="copy", daemon=True).start()

        def failed(begun: Future[None]) -> None:
            if begun.cancelled():
                copied.cancel()
            elif (error := begun.exception()) is not None and copied.set_running_or_notify_cancel():
                copied.set_exception(error)

        self._call(begin).add_done_callback(failed)
        return copied

    def written(self, attempt: Attempt, take: Callable[[Iterable[Buffer]], _Value]) -> Future[_Value]:
        """What `take` makes of the reduced sums of an attempt, uncompressed, bucket by bucket: in the compute thread.

        Call it before the step is applied.
        """
        return self._call(lambda: take(self._held().reduction.written(attempt)))

    def starve(self) -> None:
        """The next microbatch finds no memory: a rehearsal."""
        self._starved += 1

    def overflow(self) -> None:
        """From now on gradients for the stage before are finite and far too large: a rehearsal of a peer that lies."""
        self._held().overflows = True

    def flip_bit(self) -> None:
        """The first parameter changes its sign, at once: a rehearsal of memory that does so by itself."""
        stage = self._held()
        next(iter(stage.parameters.values())).data.view(-1)[:1].neg_()  # unseen by autograd

    def restore(self, attempt: Attempt, sums: Sequence[Buffer], whole: bool) -> None:
        """Take the sums of all buckets for those of `attempt` → Assembled. Work of passes up to that one is dropped.

        `whole`: they are what `written` gave of sums that are compressed otherwise.
        """
        self._backlog.drop(
            lambda task: isinstance(task, Forward | Backward | Weights) and task.pass_id <= attempt.pass_id
        )
        if whole:
            self._call(lambda: self._held().reduction.restore(attempt, sums)).add_done_callback(
                lambda done: self._restored(attempt, done.exception())
            )
            return
        for bucket, payload in enumerate(sums):
            self.submit(StoreSum(attempt, bucket, payload))
        self.submit(Assemble(attempt))

    def _restored(self, attempt: Attempt, error: BaseException | None) -> None:
        if error is None:
            self.submit(Assemble(attempt))
        else:
            self._post(ComputeFailed(attempt.pass_id, None, str(error)))

    def check_frame(self, key: FrameKey, payload: object, *, changed: bool = False) -> None:
        """Raise FrameError for a frame that cannot be computed with. For any thread, before the core sees it.

        `changed`: it is the change of an earlier one.
        """
        begun = self._begun
        kind = begun.kind if begun is not None and begun.pass_id == key.pass_id else None
        if kind is None and self._manifest.codec.auto:
            return  # of another pass, with other codecs perhaps: the core wants none of it
        if changed and key.direction is Direction.FORWARD and isinstance(payload, Buffer):
            self._format.check_change(key.boundary, payload, kind)
            return
        stage = self._stage
        sent = None if stage is None or kind is None else stage.sent.get(key.microbatch)
        self._format.check(key.boundary, key.direction, payload, kind, sent)

    def check_bucket(self, key: PartKey | SumKey, payload: object) -> None:
        """Raise FrameError for a part or sum of a wrong size or beyond the grid. For any thread."""
        if key.attempt.stage != self._index:
            raise FrameError(f"a bucket of stage {key.attempt.stage} at stage {self._index}")
        self._buckets.check(key.bucket, payload)

    def submit(self, action: ComputeAction) -> None:
        """Order work; returns at once. Work of a pass that is not the begun one is dropped."""
        match action:
            case Begin():
                self._begin(action)
                self._arrivals.begin(action.pass_id)
                self._backlog.drop(lambda task: not isinstance(task, _Call) and self._stale(task))
            case Discard():
                self._arrivals.discard(action)
                self._backlog.drop(lambda task: _given_up(task, action))
            case CancelReduce():
                self._backlog.drop(lambda task: _is_void(task, action.attempt))
        if self._stale(action):
            return
        if self._ahead and isinstance(action, Forward | Backward):
            self._arrivals.expect(action)
        match action:
            case Forward():
                self._backlog.push(Urgency.FORWARD, action.microbatch, action)
            case Backward():
                self._backlog.push(Urgency.BACKWARD, action.microbatch, action)
            case Weights():
                self._backlog.push(Urgency.WEIGHTS, action.microbatch, action)
            case _:
                self._backlog.push(Urgency.REDUCE, 0, action)

    def close(self) -> None:
        """Finish the task in hand, drop the rest, end the thread. Copies that are not complete are given up."""
        for task in self._backlog.close():
            if isinstance(task, _Call):
                task.future.cancel()
        self._holds.give_up()
        self._arrivals.close()
        if self._turns is not None:
            self._turns.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)
        self._departures.shutdown(wait=False)  # what is computed is still posted

    # ------------------------------------------------ for emulated and paced engines to replace

    def _layout(self) -> Layout:
        return Layout.of_stage(self._manifest.model, self._index)

    def _build(self, initialised: bool) -> Stage:
        return Stage(
            self._manifest,
            self._index,
            device=self._device,
            graph_budget_bytes=self._graph_budget_bytes,
            initialised=initialised,
            updates_on_cpu=self._updates_on_cpu,
            precision=self._precision,
            clock=self._clock,
            compiled=self._compiled,
            splits=self._splits,
            recomputes_layers=self._recomputes_layers,
        )

    def _compute(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        if self._turns is None:
            return run(action)
        begun = time.perf_counter()
        with self._turns.turn():
            self._waited_s = time.perf_counter() - begun
            return run(action)

    # ------------------------------------------------ any thread

    def _begin(self, action: Begin) -> None:
        """Frames and work of this pass are taken from now on; of none, if its codecs cannot be used."""
        self._begun = None
        try:
            self._format = self._format.of_pass(action.codecs, action.nonfinite)
        except UnknownCodec as error:
            self._post(ComputeFailed(action.pass_id, None, str(error)))
        else:
            self._begun = action

    def _call(self, run: Callable[[], _Value]) -> Future[_Value]:
        call = _Call(run)
        if not self._backlog.push(Urgency.REDUCE, 0, call):
            call.future.cancel()
        return call.future

    def _stale(self, action: ComputeAction) -> bool:
        """Whether `action` belongs to another pass than the begun one.

        A decision is applied whatever has begun since; sums of a pass that was never begun here may be collected, to
        catch up, but not of an older one.
        """
        begun = None if self._begun is None else self._begun.pass_id
        match action:
            case Apply() | SettleBases() | ShowState():
                return False
            case StoreSum() | Assemble() | CancelReduce():
                return begun is not None and action.attempt.pass_id < begun
            case EncodePart() | SumBucket():
                return action.attempt.pass_id != begun
            case _:
                return action.pass_id != begun

    # ------------------------------------------------ the compute thread

    def _work(self) -> None:
        torch.set_num_threads(self._threads)  # a thread sets its own number
        with self._turns or contextlib.nullcontext():
            self._work_off()

    def _work_off(self) -> None:
        while True:
            task = self._backlog.pop(wait=self._launched is None)
            if not isinstance(task, Forward | Backward | Weights):
                if self._launched is not None:
                    self._land()
                elif task is None:
                    return
            if isinstance(task, Forward):
                self._make_room()
            if task is not None:
                self._work_on(task)

    def _work_on(self, task: ComputeAction | _Call) -> None:
        """Do it; or let the device begin with it, and then see what came of the one before."""
        before, self._launched = self._launched, self._begin_task(task)
        if before is not None:
            self._finish(before)

    def _land(self) -> None:
        """Wait for what the device is doing."""
        launched, self._launched = self._launched, None
        if launched is not None:
            self._finish(launched)
            self.meter.rest()

    def _make_room(self) -> None:
        """Compute due weights' gradients whose memory the graph of a forward needs: to recompute that costs more."""
        while self._stage is not None and self._stage.is_crowded:
            task = self._backlog.take(Urgency.WEIGHTS)
            if not isinstance(task, Weights):
                return
            self._work_on(task)

    def _begin_task(self, task: ComputeAction | _Call) -> _Launched | None:
        """Do it, or let the device begin with it."""
        if isinstance(task, _Call):
            self.meter.begin(APPLYING)
            task.carry_out()
            self.meter.end()
            return None
        self._waited_s = 0.0
        self.meter.begin(*_metered(task))
        done = self._done(task)
        if isinstance(done, _Launched):
            return done
        turned = 0.0 if self._stage is None else self._clock.wait(self._stage.turned)
        self.meter.end(self._waited_s, turned)
        self._tell(done)
        return None

    def _finish(self, launched: _Launched) -> None:
        """Wait until the device has done it, and tell what came of it."""
        try:
            end = self._clock.wait(launched.end)
            begun = max(self._free_at, self._clock.passed(launched.begun))
            complete = launched.finish()
            turned = 0.0 if launched.turned is None else self._clock.passed(launched.turned)
            self._free_at = end
            self.meter.add(*_metered(launched.task), begun, end, turned)
        except Exception as error:
            self._warn(launched.task, error)
            self._tell(failure(launched.task, error.with_traceback(None)))
            return
        task, seconds = launched.task, end - begun
        self._depart(lambda: self._complete(task, complete, seconds))  # not `launched`, which holds gradients

    def _tell(self, done: PeerInput | None) -> None:
        if done is not None:
            self._depart(lambda: self._posted(done))

    def _depart(self, run: Callable[[], None]) -> None:
        """In the order of the calls, in another thread where this one works ahead."""
        if self._ahead:
            self._departures.submit(run)
        else:
            run()

    # ------------------------------------------------ the thread that posts

    def _complete(self, task: _Task, complete: Callable[[], PeerInput], seconds: float) -> None:
        """Tell what has come of a microbatch, once its body is joined."""
        done: PeerInput
        try:
            answer = complete()
            done = replace(answer, seconds=seconds) if isinstance(answer, _TIMED) else answer
        except Exception as error:
            self._warn(task, error)
            done = failure(task, error.with_traceback(None))
        self._posted(done)

    def _posted(self, done: PeerInput) -> None:
        try:
            self._post(done)
        except Exception:
            _log.exception("posting %s failed", type(done).__name__)

    # ------------------------------------------------ the compute thread, a task

    def _done(self, task: ComputeAction) -> PeerInput | _Launched | None:
        """What comes of it. Where there was no memory for it, it is done again with less, once in an engine's life."""
        done, error = self._attempt(task)
        if error is not None and out_of_memory(error):
            again = self._relieve(task, error) and not self._void(task)
            if again:
                done, error = self._attempt(task)
                if error is not None and out_of_memory(error):
                    self._relieve(task, error)
        return done if error is None else failure(task, error)

    def _attempt(self, task: ComputeAction) -> tuple[PeerInput | _Launched | None, Exception | None]:
        """What came of it, or why nothing did: without the frames of before, which hold on to memory."""
        try:
            return self._carry_out(task), None
        except Exception as error:
            self._warn(task, error)
            return None, error.with_traceback(None)

    def _warn(self, task: ComputeAction, error: Exception) -> None:
        """Inside an except clause."""
        name = type(task).__name__
        if isinstance(error, CodecError):  # the numbers are at fault, not the program
            _log.warning("%s failed: %s", name, error)
        elif out_of_memory(error):
            _log.warning("%s failed: %s", name, _first_line(error))
        else:
            _log.exception("%s failed", name)

    def _relieve(self, task: ComputeAction, error: Exception) -> bool:
        """Give up what can be. Whether this is the first time."""
        first, self._relieved = not self._relieved, True
        before, now = (0, 0) if self._stage is None else self._stage.relieve()
        gc.collect()
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()
        _, microbatch = _subject(task)
        where = "" if microbatch is None else f" at microbatch {microbatch}"
        what = f"{type(task).__name__}{where}: {_first_line(error)}"
        self._tell(MemoryShort(what, before, now))
        return first

    def _void(self, task: ComputeAction) -> bool:
        """Whether half of it may be done: then this peer has no part in the pass any more, or loads its state anew."""
        match task:
            case Forward() | Backward() | Weights():
                return self._stage is None or not self._stage.intact
            case EncodePart() | SumBucket() | StoreSum() | Assemble():
                return self._manifest.sums.compresses  # what that loses is remembered on the way
            case _:
                return True

    def _carry_out(self, action: ComputeAction) -> PeerInput | _Launched | None:
        stage = self._held()
        if self._starved and isinstance(action, Forward | Backward):
            self._starved -= 1
            raise MemoryError("a rehearsal: no memory is left")
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
                self._holds.settle()
                return stage.apply(action)
            case SettleBases():
                stage.bases.settle(action)
            case ShowState(version, nonce):
                is_held = stage.optimizer.version == version
                return StateShown(version, nonce, stage.optimizer.checksum(nonce) if is_held else None)
        return None

    def _launched_by(self, launch: Callable[[_Action, Buffer | None], _Finish], action: _Action) -> _Launched | None:
        """None where the thread has to wait for what it computes: it computes by itself, or at a pace."""
        if not self._ahead:
            return None
        body = self._arrivals.of(action)
        stage, begun = self._held(), self._clock.mark()
        before = stage.turned
        finish = launch(action, body)
        turned = stage.turned if stage.turned is not before else None
        return _Launched(action, finish, begun, self._clock.mark(), turned, body)

    def _coming_orders(self) -> list[EncodePart | SumBucket]:
        """Those of a reduce that are queued."""
        return [task for task in self._backlog.waiting(Urgency.REDUCE) if isinstance(task, EncodePart | SumBucket)]

    def _timed(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        start = time.perf_counter()
        done = self._compute(run, action)
        if isinstance(done, _TIMED):
            return replace(done, seconds=time.perf_counter() - start)
        return done

    def _held(self) -> Stage:
        if self._stage is None:
            raise RuntimeError(f"stage {self._index} holds no state yet")
        return self._stage

    def _initialise(self) -> None:
        self._holds.settle()
        self._stage = self._coming = None  # two copies need not fit
        self._stage = self._warm(self._build(initialised=True))

    def _prepare(self) -> Stage:
        """Tensors to load a state into: those of the one that is held, else new ones."""
        if self._stage is not None:
            return self._stage
        if self._coming is None:
            self._coming = self._warm(self._build(initialised=False))
        return self._coming

    def _warm(self, stage: Stage) -> Stage:
        """Ready to compute."""
        stage.reduction.coming = self._coming_orders
        if self._compiled:
            stage.warm_up(self._manifest)
        return stage

    def _load(self, state: StageState) -> None:
        stage = self._prepare()
        self._holds.settle()
        try:
            stage.optimizer.load(state)
        finally:
            if stage.optimizer.torn:
                self._stage = self._coming = None
        stage.loaded()
        stage.begin()
        stage.bases.clear()
        stage.reduction.forget()
        self._stage, self._coming = stage, None


@dataclass(frozen=True, slots=True)
class _Launched:
    """A microbatch that the device computes; `finish` is for the time when it has passed `end`."""

    task: _Task
    finish: _Finish
    begun: Mark
    end: Mark
    turned: Mark | None
    """Where the last stage went from forward to backward, if it did."""
    body: Buffer | None
    """What the device reads meanwhile."""


class _Call:
    """Work on the compute thread whose result is for the caller, not the core."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.future: Future[Any] = Future()

    def carry_out(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._run())
            except Exception as error:
                self.future.set_exception(error)


def _copy(held: HeldState, copy: Callable[[HeldState], _Value], copied: Future[_Value]) -> None:
    """In a thread of its own."""
    torch.set_num_threads(1)  # the cores are for computing
    try:
        copied.set_result(copy(held))
    except Exception as error:
        copied.set_exception(error)
    finally:
        held.release()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _metered(task: ComputeAction) -> tuple[int, int]:
    """Kind of work and microbatch, as the meter counts it. What is done with a whole state counts as applying."""
    match task:
        case Forward():
            return FORWARD, task.microbatch
        case Backward() | Weights():
            return BACKWARD, task.microbatch
        case EncodePart() | SumBucket() | StoreSum() | Assemble() | CancelReduce():
            return REDUCING, -1
        case Begin() | Discard() | Apply() | SettleBases() | ShowState():
            return APPLYING, -1


def failure(action: ComputeAction, error: Exception) -> ComputeFailed | StateShown:
    """What the core is told of an exception."""
    if isinstance(action, ShowState):
        return StateShown(action.version, action.nonce, None)
    unsendable = isinstance(error, CodecError) and error.reason is Reason.NOT_FINITE
    return ComputeFailed(
        *_subject(action), f"{type(action).__name__}: {error or type(error).__name__}", nonfinite=unsendable
    )


def _given_up(task: object, order: Discard) -> bool:
    """Whether a task is of the microbatch that is to be discarded."""
    of = (order.pass_id, order.microbatch)
    return isinstance(task, Forward | Weights) and (task.pass_id, task.microbatch) == of


def _is_void(task: object, cancelled: Attempt) -> bool:
    """Whether work of a reduce is of no use once that attempt is cancelled: parts may be made under an older table."""
    if isinstance(task, EncodePart):
        return cancelled.ends(task.attempt)
    return getattr(task, "attempt", None) == cancelled


def _subject(action: ComputeAction) -> tuple[PassId, Microbatch | None]:
    if isinstance(action, Forward | Backward | Weights | Discard):
        return action.pass_id, action.microbatch
    if isinstance(action, Begin):
        return action.pass_id, None
    assert not isinstance(action, SettleBases | ShowState), "the one does not fail, the other fails no pass"
    return action.attempt.pass_id, None
