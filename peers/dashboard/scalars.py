"""Appends the figures of each step for TensorBoard as the steps are decided."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers.dashboard.history.history import LONGEST_RETRY_S, RETRY_S, History
from peers.dashboard.reader import Reader
from peers.dashboard.tensorboard import TensorBoard

_EVERY_S = 5.0
_AT_ONCE = 2_000


class Scalars:
    """Keeps a folder's file for TensorBoard. If the file cannot be written, it is opened again later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._retry_s = RETRY_S
        self.trouble = ""
        """Why nothing is written now; empty if it is."""

    async def run(self, reader: Reader) -> None:
        """Write until cancelled."""
        while True:
            try:
                # reads the whole file, which takes seconds after a long run
                board = await asyncio.to_thread(TensorBoard, self._folder)
                try:
                    await write_scalars(reader, board, self._written)
                finally:
                    with suppress(OSError):  # it writes what is left, which opening it again cuts off if it is torn
                        board.close()
            except OSError as error:
                self.trouble = f"nothing is written for TensorBoard: {error.strerror or error}. It is tried again later"
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _written(self) -> None:
        self._retry_s, self.trouble = RETRY_S, ""


async def write_scalars(reader: Reader, board: TensorBoard, written: Callable[[], None] = lambda: None) -> None:
    """Write until cancelled. `written` is called whenever everything so far is in the file. Raises OSError."""
    done, evaluated = board.last.get(_ALWAYS, -1), board.last.get(_HELDOUT, -1)
    while True:
        done_at = board.last_at.get(_ALWAYS, math.inf)

        def rows(
            history: History, done: int = done, done_at: float = done_at, evaluated: int = evaluated
        ) -> tuple[int, float, _Rows, _Rows]:
            kept = history.kept_step(done, done_at)
            evaluated = evaluated if kept == done else min(evaluated, kept)  # TensorBoard forgets version kept + 1 too
            steps, evaluations = history.steps_after(kept, _AT_ONCE), history.evaluations_after(evaluated, _AT_ONCE)
            return kept, history.span[1], steps, evaluations

        kept, now, steps, evaluations = await reader.ask(rows, own=True)
        if kept != done:
            board.go_back(now, kept + 1)
            done, evaluated = kept, min(evaluated, kept)
        for at, step, *figures in steps:
            done = step
            values = {tag: value for tag, value in zip(_TAGS, figures, strict=True) if value is not None}
            board.add(at, step, values | {_ALWAYS: step})
        for at, version, loss in evaluations:
            evaluated = version
            if loss is not None:
                board.add(at, version, {_HELDOUT: loss})
        board.flush()
        written()
        if len(steps) < _AT_ONCE:
            await asyncio.sleep(_EVERY_S)


_Rows = list[tuple[Any, ...]]
_ALWAYS, _HELDOUT = "step", "heldout_loss"
"""Names of figures. `step` is written for every step, even if its other figures are not finite, because it marks the
progress of the file.
"""
_TAGS = ("loss", "gradient_norm", "tokens_per_second", "step_seconds", "efficiency")
