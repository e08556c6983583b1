"""Ctrl-C reaches all peers of a process that are there, and keeps nothing of those that have ended."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref

from peers.stage.interrupts import Interrupts


class Peer:
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def leave(self) -> None:
        self.asked.set()


async def test_all_are_asked_who_are_there_and_who_has_ended_takes_no_room() -> None:
    interrupts, stays, ends = Interrupts(), Peer(), Peer()
    interrupts.register(lambda: stays.leave())
    gone = weakref.ref(ends)
    end = interrupts.register(lambda ends=ends: ends.leave())  # type: ignore[misc]
    end()
    del ends, end
    gc.collect()
    assert gone() is None, "and with it the stage that it held"
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(60):
        await stays.asked.wait()
    late = Peer()
    interrupts.register(late.leave)
    assert late.asked.is_set()
