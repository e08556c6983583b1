"""Ctrl-C, SIGTERM or SIGHUP for all peers of a process: each of them leaves well; a second Ctrl-C ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from peers.runtime.signals import leaving_signals, let_the_next_end_it


class Interrupts:
    """`leave` is registered by each peer when it is ready to; who comes after the first signal leaves at once."""

    def __init__(self) -> None:
        self._leave: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = False

    def register(self, leave: Callable[[], None]) -> Callable[[], None]:
        """From within the event loop. Returns what takes it back, for a peer that has ended and others have not."""
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
