"""Appends the figures of each step for TensorBoard as the steps are decided."""

from __future__ import annotations

import asyncio
from typing import Any

from peers.dashboard.history.history import History
from peers.dashboard.reader import Reader
from peers.dashboard.tensorboard import TensorBoard

_EVERY_S = 5.0
_AT_ONCE = 2_000


async def write_scalars(reader: Reader, board: TensorBoard) -> None:
    """Write until cancelled. Raises OSError."""
    done, evaluated = board.last.get(_ALWAYS, -1), board.last.get(_HELDOUT, -1)
    while True:

        def rows(history: History, done: int = done, evaluated: int = evaluated) -> tuple[_Rows, _Rows]:
            return history.steps_after(done, _AT_ONCE), history.evaluations_after(evaluated, _AT_ONCE)

        steps, evaluations = await reader.ask(rows, own=True)
        for at, step, *figures in steps:
            done = step
            values = {tag: value for tag, value in zip(_TAGS, figures, strict=True) if value is not None}
            board.add(at, step, values | {_ALWAYS: step})
        for at, version, loss in evaluations:
            evaluated = version
            if loss is not None:
                board.add(at, version, {_HELDOUT: loss})
        board.flush()
        if len(steps) < _AT_ONCE:
            await asyncio.sleep(_EVERY_S)


_Rows = list[tuple[Any, ...]]
_ALWAYS, _HELDOUT = "step", "heldout_loss"
"""Names of figures. `step` is written for every step, even if its other figures are not finite, because it marks the
progress of the file.
"""
_TAGS = ("loss", "gradient_norm", "tokens_per_second", "step_seconds", "efficiency")
