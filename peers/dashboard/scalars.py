"""Scalars: the figures of each step, written on for TensorBoard as they come."""

from __future__ import annotations

import asyncio

from peers.dashboard.history.history import History
from peers.dashboard.reader import Reader
from peers.dashboard.tensorboard import TensorBoard

_EVERY_S = 5.0
_AT_ONCE = 2_000


async def write_scalars(reader: Reader, board: TensorBoard) -> None:
    """Until it is cancelled. Raises OSError."""
    evaluated = board.last_step
    while True:
        after = board.last_step

        def rows(history: History, after: int = after, evaluated: int = evaluated) -> tuple[list, list]:  # type: ignore[type-arg]
            return history.steps_after(after, _AT_ONCE), history.evaluations_after(evaluated, _AT_ONCE)

        steps, evaluations = await reader.ask(rows)
        for at, step, *figures in steps:
            board.add(at, step, {tag: value for tag, value in zip(_TAGS, figures, strict=True) if value is not None})
        for at, version, loss in evaluations:
            evaluated = version
            if loss is not None:
                board.add(at, version, {"heldout_loss": loss})
        board.flush()
        if len(steps) < _AT_ONCE:
            await asyncio.sleep(_EVERY_S)


_TAGS = ("loss", "gradient_norm", "tokens_per_second", "step_seconds", "efficiency")
