"""A figure over time, reduced to the width of a plot in pixels: minimum, maximum and last value of each bucket."""

from __future__ import annotations

import itertools
from typing import Any

from peers.dashboard.history.store import Store

_STEPS = "SELECT decided_at, {} FROM steps WHERE decided_at BETWEEN ? AND ? ORDER BY decided_at"
_OF_STEPS = {
    "loss": "loss",
    "gradient_norm": "gradient_norm",
    "tokens_per_second": "tokens_per_second",
    "ideal_tokens_per_second": "ideal",
    "goodput": "goodput",
    "step_seconds": "seconds",
    "efficiency": "efficiency",
    "peers": "peers",
    "bytes_per_s": "sent",
}
NAMES = (*_OF_STEPS, "heldout_loss")
MOST_POINTS = 4000


def series(store: Store, name: str, start: float, end: float, points: int) -> dict[str, Any]:
    """The values for a plot. `t`: unix seconds of the last value in each bucket. Raises KeyError for a name outside
    NAMES.
    """
    if name == "heldout_loss":
        rows = store.rows("SELECT at, loss FROM evaluations WHERE at BETWEEN ? AND ? ORDER BY at", (start, end))
    else:
        rows = store.rows(_STEPS.format(_OF_STEPS[name]), (start, end))
    if name == "bytes_per_s":
        rows = [
            (at, (sent - before) / (at - then))
            for (then, before), (at, sent) in itertools.pairwise(rows)
            if at > then and sent >= before
        ]
    return {"name": name} | _buckets(rows, start, end, max(1, min(points, MOST_POINTS)))


def _buckets(rows: list[tuple[Any, ...]], start: float, end: float, points: int) -> dict[str, list[float]]:
    width = max(1e-9, (end - start) / points)
    times: list[float] = []
    least: list[float] = []
    most: list[float] = []
    last: list[float] = []
    current = -1
    for at, value in rows:
        if value is None:
            continue
        bucket = min(points - 1, int((at - start) / width))
        if bucket != current:
            current = bucket
            times.append(at)
            least.append(value)
            most.append(value)
            last.append(value)
            continue
        times[-1], last[-1] = at, value
        least[-1], most[-1] = min(least[-1], value), max(most[-1], value)
    return {"t": times, "min": least, "max": most, "last": last}
