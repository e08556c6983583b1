"""Runs a sans-IO core in an asyncio loop: takes one input at a time, executes actions in order, and calls ticks when
due.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar

import uvloop

from peers.runtime.signals import treat_all_as_ctrl_c
from swarm.events import EventLog, ProcessStopped
from swarm.protocol.io import Tick

Input = TypeVar("Input", contravariant=True)
Action = TypeVar("Action", covariant=True)


class ProcessFailed(RuntimeError):
    """This process cannot continue; a supervisor may start it again. The reason is in its event log."""

    exit_code = 1


class MachineFailed(ProcessFailed):
    """This process cannot continue until its user has mended something on this machine, such as a full disk."""

    exit_code = 2


class RunFailed(ProcessFailed):
    """The run itself cannot continue: restarting this process would not help."""

    exit_code = 4


class CoreFault(RuntimeError):
    """A core, or the code that executes its actions, met an unexpected case: a bug of this program."""


INTERRUPTED = "interrupted"


def exit_code(process: Coroutine[Any, Any, str]) -> int:
    """Run a process's coroutine in uvloop to its end. Returns 0 when done, 130 when interrupted, otherwise the exit
    code of ProcessFailed. Until the coroutine handles signals itself, all signals that ask it to leave act as Ctrl-C.
    """
    treat_all_as_ctrl_c()
    try:
        return 130 if uvloop.run(process).startswith(INTERRUPTED) else 0
    except ProcessFailed as failure:
        return failure.exit_code


class Core(Protocol[Input, Action]):
    def handle(self, event: Input, now: float) -> Iterable[Action]: ...

    def next_wakeup(self) -> float: ...


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class CoreLoop(Generic[Input, Action]):
    """Runs one core. Call `post` from the loop, `call` from any thread. `run` ends after `stop`."""

    def __init__(self, core: Core[Input, Action], carry_out: Callable[[Action], None]) -> None:
        self._core = core
        self._carry_out = carry_out
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._failure: type[ProcessFailed] | None = None
        self.stop_reason = ""

    def post(self, event: Input) -> None:
        self._inputs.put_nowait(event)

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` in the loop, from any thread. It is dropped if the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def stop(self, reason: str) -> None:
        self._stopped = True
        self.stop_reason = reason
        self._inputs.put_nowait(Tick())  # type: ignore[arg-type]  # wakes `run`

    def fail(self, reason: str, failure: type[ProcessFailed] = ProcessFailed) -> None:
        """Stop with this failure: an essential part has ended."""
        self._failure = failure
        self.stop(reason)

    def give_up(self, reason: str) -> None:
        """Stop with RunFailed, as the core has ordered."""
        self.fail(reason, RunFailed)

    def watch(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Watch a background task: an error in it ends the process, so that no failure goes unnoticed."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                traceback.print_exception(error)
                self.fail(f"internal error: {error!r}")

        task.add_done_callback(ended)
        return task

    @property
    def stopped(self) -> bool:
        return self._stopped

    async def run(self) -> None:
        """Run until `stop` or `fail`. An exception in the core or in an action ends the process: it is a bug."""
        while not self._stopped:
            event = await self._next()
            try:
                for action in self._core.handle(event, self._loop.time()):
                    self._carry_out(action)
            except (ValueError, ArithmeticError) as error:  # elsewhere a user's mistake, here a bug
                raise CoreFault(f"{type(error).__name__} at {type(event).__name__}: {error}") from error

    async def run_to_end(self, log: EventLog) -> str:
        """Run, and log why the loop was stopped. Returns the reason. Raises ProcessFailed if it failed, even if the log
        cannot be written any more; otherwise OSError.
        """
        await self.run()
        try:
            log.append(ProcessStopped(self.stop_reason))
        except OSError:
            self.outcome()
            raise
        return self.outcome()

    def outcome(self) -> str:
        """The reason why the loop was stopped. Raises ProcessFailed if it failed."""
        if self._failure is not None:
            raise self._failure(self.stop_reason)
        return self.stop_reason

    async def _next(self) -> Input:
        if not self._inputs.empty():
            return self._inputs.get_nowait()
        wait = self._core.next_wakeup() - self._loop.time()
        try:
            async with asyncio.timeout(max(0.0, wait)):
                return await self._inputs.get()
        except TimeoutError:
            return Tick()  # type: ignore[return-value]
