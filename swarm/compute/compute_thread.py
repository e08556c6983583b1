"""The compute thread: it owns the device and executes one task after another, the most urgent first.

If the device is asynchronous (a GPU), the thread works *ahead*: it launches a microbatch while the device computes the
previous one, so the device always has work. It never waits for the device itself: a second thread does this for each
launched task, so tasks that arrive meanwhile are launched at once. A third thread joins the outgoing bodies and posts
the results, in the order of the tasks. An exception never ends the thread: the core receives it as ComputeFailed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch

from swarm.buffer import Buffer
from swarm.codecs import CodecError
from swarm.compute.actions import ComputeAction, MicrobatchAction, failure, metered_as, place_of
from swarm.compute.backlog import Backlog, Urgency
from swarm.compute.device_clock import DeviceClock, Mark
from swarm.compute.meter import APPLYING, Meter
from swarm.compute.shortage import first_line, out_of_memory
from swarm.compute.turns import Turns
from swarm.protocol.peer.io import BackwardDone, Forward, ForwardDone, PeerInput, Weights, WeightsDone

_JOIN_TIMEOUT_S = 30.0
AHEAD = 2
"""Largest number of launched tasks that the device has not finished. More would need more memory, and a backward that
arrives would have to wait for all forwards launched before it.
"""
TIMED = (ForwardDone, BackwardDone, WeightsDone)
"""Inputs of the core that report how many seconds their work took."""
_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A microbatch that the device is computing."""

    task: MicrobatchAction
    finish: Callable[[], Callable[[], PeerInput]]
    """Call it once the device has passed `end`. The returned function joins the body, and may be called in any thread.
    """
    begun: Mark
    end: Mark
    turned: Mark | None
    """The time at which the last stage switched from forward to backward, if it did."""
    body: Buffer | None
    """The body that the device is reading; it must be kept until the device has finished."""
    reached: Future[float] = field(default_factory=Future)
    """The time at which the device passed `end`."""


class Executor(Protocol):
    """Executes actions. Its methods are called in the compute thread only."""

    def carry_out(self, action: ComputeAction) -> PeerInput | Launched | None:
        """Execute an action, or launch it on the device. Does not raise."""

    def needs_room(self) -> bool:
        """True if deferred gradients of weights occupy memory that the next forward's graph needs."""

    def turned_at(self) -> Mark | None:
        """The time at which the last stage last switched from forward to backward."""


class ComputeThread:
    """`post` receives the results, from one thread, in the order of the tasks."""

    def __init__(
        self,
        stage: int,
        executor: Executor,
        *,
        post: Callable[[PeerInput], None],
        clock: DeviceClock,
        threads: int,
        turns: Turns | None,
        ahead: bool,
    ) -> None:
        self._executor = executor
        self._post = post
        self._clock = clock
        self._threads = threads
        self._turns = turns
        self._ahead = ahead
        self.meter = Meter()
        self.waited_s = 0.0
        """Seconds that the current task waited for its turn. The executor sets it."""
        self._launched: deque[Launched] = deque()
        """The tasks that the device is computing, in order."""
        self._free_at = 0.0
        """The time at which the device finished its last task."""
        self._backlog: Backlog[ComputeAction | _Call] = Backlog()
        self._landings = ThreadPoolExecutor(1, f"landings-{stage}")
        self._departures = ThreadPoolExecutor(1, f"departures-{stage}", torch.set_num_threads, (threads,))
        self._thread = threading.Thread(target=self._run, name=f"compute-{stage}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ------------------------------------------------ any thread

    def push(self, action: ComputeAction) -> None:
        self._backlog.push(*place_of(action), action)

    def call(self, run: Callable[[], _Value]) -> Future[_Value]:
        """Call `run` in the compute thread, before all queued microbatches. Only the caller gets its result; the core
        does not.
        """
        call = _Call(run)
        if not self._backlog.push(Urgency.REDUCE, 0, call):
            call.future.cancel()
        return call.future

    def drop(self, unwanted: Callable[[ComputeAction], bool]) -> None:
        """Remove unwanted actions from the queue. Calls stay."""
        self._backlog.drop(lambda task: not isinstance(task, _Call) and unwanted(task))

    def queued(self, urgency: Urgency) -> list[ComputeAction]:
        """The queued actions of this urgency, in the order in which they will be executed."""
        return [task for task in self._backlog.waiting(urgency) if not isinstance(task, _Call)]

    def stop(self) -> None:
        """Drop all queued tasks. The thread ends after the current one."""
        for task in self._backlog.close():
            if isinstance(task, _Call):
                task.future.cancel()
        if self._turns is not None:
            self._turns.end()

    def join(self) -> None:
        """After `stop`: wait until the thread has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)
        self._landings.shutdown(wait=False)
        self._departures.shutdown(wait=False)  # finished work is still posted

    # ------------------------------------------------ the compute thread

    def tell(self, done: PeerInput | None) -> None:
        """Post a result, after the results of all earlier tasks."""
        if done is not None:
            self._depart(lambda: self._posted(done))

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # torch sets this per thread
        with self._turns or contextlib.nullcontext():
            self._work_off()

    def _work_off(self) -> None:
        while True:
            task = self._backlog.pop(until=self._has_landed)
            if task is None:
                if not self._launched:
                    return
                self._finish()
                continue
            if not isinstance(task, MicrobatchAction):
                while self._launched:
                    self._finish()
            if isinstance(task, Forward):
                self._make_room()
            self._do(task)

    def _has_landed(self) -> bool:
        return bool(self._launched) and self._launched[0].reached.done()

    def _do(self, task: ComputeAction | _Call) -> None:
        """Execute a task, or launch it. Then finish tasks until the device has less than AHEAD others."""
        launched = self._begin(task)
        if launched is not None:
            self._launched.append(launched)
            launched.reached.add_done_callback(lambda _: self._backlog.wake())
            self._landings.submit(self._await, launched.reached, launched.end)
        while len(self._launched) >= AHEAD:
            self._finish()

    def _make_room(self) -> None:
        """Compute deferred gradients of weights first if the next forward needs their memory: recomputing that forward
        would cost more.
        """
        while self._executor.needs_room():
            task = self._backlog.take(Urgency.WEIGHTS)
            if not isinstance(task, Weights):
                return
            self._do(task)

    def _begin(self, task: ComputeAction | _Call) -> Launched | None:
        if isinstance(task, _Call):
            self.meter.begin(APPLYING)
            task.carry_out()
            self.meter.end()
            return None
        self.waited_s = 0.0
        self.meter.begin(*metered_as(task))
        done = self._executor.carry_out(task)
        if isinstance(done, Launched):
            return done
        turned = self._executor.turned_at()
        self.meter.end(self.waited_s, 0.0 if turned is None else self._clock.passed(turned))
        self.tell(done)
        return None

    def _finish(self) -> None:
        """Wait until the device has computed the task launched first, and post the result."""
        launched = self._launched.popleft()
        try:
            end = launched.reached.result()
            begun = max(self._free_at, self._clock.passed(launched.begun))
            complete = launched.finish()
            turned = 0.0 if launched.turned is None else self._clock.passed(launched.turned)
            self._free_at = end
            self.meter.add(*metered_as(launched.task), begun, end, turned)
        except Exception as error:
            warn(launched.task, error)
            self.tell(failure(launched.task, error.with_traceback(None)))
            return
        finally:
            if not self._launched:
                self.meter.rest()
        task, seconds = launched.task, end - begun
        self._depart(lambda: self._complete(task, complete, seconds))  # not `launched`, which holds gradients

    def _depart(self, run: Callable[[], None]) -> None:
        """Run the calls in order: in another thread if this one works ahead, otherwise here."""
        if self._ahead:
            self._departures.submit(run)
        else:
            run()

    # ------------------------------------------------ the thread that waits for the device

    def _await(self, reached: Future[float], end: Mark) -> None:
        try:
            reached.set_result(self._clock.wait(end))
        except Exception as error:
            reached.set_exception(error)

    # ------------------------------------------------ the thread that posts

    def _complete(self, task: MicrobatchAction, complete: Callable[[], PeerInput], seconds: float) -> None:
        """Join a microbatch's body and post the result."""
        done: PeerInput
        try:
            answer = complete()
            done = replace(answer, seconds=seconds) if isinstance(answer, TIMED) else answer
        except Exception as error:
            warn(task, error)
            done = failure(task, error.with_traceback(None))
        self._posted(done)

    def _posted(self, done: PeerInput) -> None:
        try:
            self._post(done)
        except Exception:
            _log.exception("posting %s failed", type(done).__name__)


class _Call:
    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.future: Future[Any] = Future()

    def carry_out(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._run())
            except Exception as error:
                self.future.set_exception(error)


def warn(task: ComputeAction, error: Exception) -> None:
    """Log the failure of a task. Call it inside an except clause."""
    name = type(task).__name__
    if isinstance(error, CodecError):  # the numbers are at fault, not the program
        _log.warning("%s failed: %s", name, error)
    elif out_of_memory(error):
        _log.warning("%s failed: %s", name, first_line(error))
    else:
        _log.exception("%s failed", name)
