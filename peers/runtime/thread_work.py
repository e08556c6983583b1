"""Runs work in a thread of the loop's default pool."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class NoThread(OSError):
    """The system starts no further thread. The work has not begun, and will not begin later."""


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run `function` in a thread, and return its result. Raises NoThread and the errors of `function`.

    `asyncio.to_thread` raises RuntimeError if no thread can be started, like many bugs. And the pool keeps the work
    then, and may still do it later.
    """
    result: Future[T] = Future()

    def work() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(function(*arguments, **named))
        except BaseException as error:
            result.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError as error:
        if result.cancel():
            raise NoThread(errno.EAGAIN, f"{error}: raise the limit of threads with `ulimit -u`") from error
    return await asyncio.wrap_future(result)


async def to_its_end(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Like `in_thread`. A thread cannot be stopped, so even a cancelled caller waits until the work has ended."""
    work = asyncio.ensure_future(in_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,))
        raise
