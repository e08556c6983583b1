"""The only thread that follows the logs and answers questions about them.

The history and the run's state change in place as the logs grow, so questions are answered in the same thread. The
queue of viewers' questions is bounded: when it is full, further ones are refused. The logs are still followed, and the
dashboard's own questions are still answered. When the dashboard ends, questions that still wait are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from peers.dashboard.access import Denied
from peers.dashboard.history.history import History
from peers.dashboard.history.replay import Stopped

Answer = TypeVar("Answer")

MOST_WAITING = 64
"""Questions of viewers that may wait at the same time."""

_LOOK_EVERY_S = 1.0
_SHARE = 0.25
"""Fraction of a core that is spent on logs which grow all the time."""


class Reader:
    """The thread of one dashboard. `open` makes the history in this thread. `follow` runs until it is cancelled."""

    def __init__(self, open_history: Callable[[], History], circumstances: Callable[[], str]) -> None:
        """`circumstances`: the other inputs of the answers, as a text. Called about once a second, in the thread."""
        self._open = open_history
        self._circumstances = circumstances
        self._thread = ThreadPoolExecutor(1, "history")
        self._history: History | None = None
        self._waiting = 0
        self._calls: set[Future[Any]] = set()
        """Calls that wait for the thread, or run in it."""
        self._ends = False
        self.position = ""
        """Identifies the state of the history and the circumstances; it changes whenever something is new."""
        self.edition = ""
        """Identifies what is known of the past, as `History.edition`."""
        self.last_at = 0.0
        """Unix seconds of the last event."""
        self.caught_up = False
        self.on_new: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Open the history. Raises the errors of opening a history."""
        self._history = await self._in_thread(self._open)

    async def follow(self) -> None:
        """Read new lines, about once a second. Raises the errors of reading."""
        while True:
            took = await self._in_thread(self._look)
            pause = max(_LOOK_EVERY_S, took / _SHARE) if self.caught_up else 0.001
            await asyncio.sleep(pause)

    async def ask(self, question: Callable[[History], Answer], *, own: bool = False) -> Answer:
        """Answer a question, or raise its errors. `own`: the dashboard itself asks, and no viewer can make it ask more
        often. Raises Denied if too many questions are waiting, but never for an own question. If the dashboard ends
        first, raises Denied, for an own question CancelledError.
        """
        if own:
            return await self._in_thread(lambda: question(self._held))
        if self._waiting >= MOST_WAITING:
            raise Denied(503, "too many questions at once: ask again in a moment", 2.0)
        self._waiting += 1
        task = asyncio.current_task()
        try:
            return await self._in_thread(lambda: question(self._held))
        except asyncio.CancelledError:
            if not self._ends or (task is not None and task.cancelling()):
                raise
            raise Denied(503, "the dashboard is being ended") from None
        finally:
            self._waiting -= 1

    def refuse(self) -> None:
        """Refuse the questions that wait, and all further ones; end the one that is being answered."""
        self._ends = True
        for call in list(self._calls):
            call.cancel()
        if self._history is not None:
            self._history.stop()

    async def close(self) -> None:
        self.refuse()
        if self._history is not None:
            await asyncio.wrap_future(self._thread.submit(self._history.close))
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
        if self._ends:
            raise asyncio.CancelledError
        made = self._thread.submit(call)
        self._calls.add(made)
        made.add_done_callback(self._calls.discard)
        try:
            return await asyncio.wrap_future(made)
        except Stopped:
            raise asyncio.CancelledError from None

    def _look(self) -> float:
        """Read new lines. Returns the seconds of CPU that this took."""
        began = time.thread_time()
        self.caught_up = not self._held.follow()
        self.last_at = self._held.now.run.last_at
        self.edition = self._held.edition
        position = f"{self._held.position} {self._circumstances()}"
        if position != self.position:
            self.position = position
            for tell in self.on_new:
                tell()
        return time.thread_time() - began

    @property
    def _held(self) -> History:
        assert self._history is not None, "open() comes first"
        return self._history
