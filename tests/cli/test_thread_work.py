"""Work in a thread on a machine that starts no further threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from peers.runtime.thread_work import NoThread, in_thread, to_its_end


async def test_work_without_a_thread_fails_and_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool keeps such work, and another of its threads would do it."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(8))
    begun, goes_on = asyncio.Event(), threading.Event()
    done: list[str] = []

    def busy() -> str:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(60)
        return "busy"

    working = asyncio.create_task(in_thread(busy))
    await begun.wait()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        for run in (in_thread, to_its_end):
            with pytest.raises(NoThread, match="can't start new thread: raise the limit of threads with `ulimit -u`"):
                await run(done.append, "late")
    goes_on.set()
    assert await working == "busy"
    await in_thread(done.append, "next")
    assert done == ["next"]


async def test_errors_of_the_work_are_its_callers() -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await in_thread(fails)
    assert await in_thread(int, "12", base=3) == 5
