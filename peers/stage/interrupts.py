"""Handles Ctrl-C, SIGTERM and SIGHUP for all peers of a process: each peer leaves cleanly; a second Ctrl-C ends the
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from peers.runtime.signals import leaving_signals, let_the_next_end_it


class Interrupts:
    """The handlers of one process. Each peer registers `leave` when it is ready. A peer that registers after the first
    signal leaves at once. Until a peer has registered, signals end the process in the usual way.
    """

    def __init__(self) -> None:
        self._starting: set[asyncio.Task[Any]] = set()
        """The tasks of peers that have not registered."""
        self._leave: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = False

    def starts(self, task: asyncio.Task[Any]) -> None:
        """A peer starts in `task`. The first signal cancels the task if the peer has not registered by then."""
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        if self._came:
            task.cancel()

    def register(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Call in the task of the peer. Returns a function that unregisters, for a peer that ends before the others."""
        if (task := asyncio.current_task()) is not None:
            self._starting.discard(task)
        self._leave.append(leave)
        if self._came:
            leave()
        elif self._loop is None:
            self._loop = asyncio.get_running_loop()
            for number in leaving_signals():
                self._loop.add_signal_handler(number, self._first)
        return partial(self._leave.remove, leave)

    def _first(self) -> None:
        assert self._loop is not None
        self._came = True
        for number in leaving_signals():
            self._loop.remove_signal_handler(number)
        let_the_next_end_it()
        for task in list(self._starting):
            task.cancel()
        for leave in list(self._leave):
            leave()
