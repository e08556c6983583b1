"""Handles Ctrl-C, SIGTERM and SIGHUP for all peers of a process: each peer leaves cleanly; a second Ctrl-C ends the
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from peers.runtime.signals import leaving_signals, let_the_next_end_it


class Interrupts:
    """The handlers of one process. Each peer registers `leave` when it is ready. A peer that registers after the first
    signal leaves at once.
    """

    def __init__(self) -> None:
        self._leave: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = False

    def register(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Call in the event loop. Returns a function that unregisters, for a peer that ends before the others."""
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
        for leave in list(self._leave):
            leave()
