"""A figure over time, reduced to the width of a plot in pixels: minimum, maximum and last value of each bucket.

A page shows several figures of the same steps. In a long run, SQLite computes the buckets of all of them in one pass,
which the next questions about the same span use too.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from peers.dashboard.history.store import Store

_STEPS = "SELECT decided_at, {} FROM steps WHERE decided_at BETWEEN ? AND ? ORDER BY decided_at, step"
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
_COLUMNS = tuple(column for column in _OF_STEPS.values() if column != "sent")
_INSIDE = "FROM steps WHERE decided_at >= ? AND decided_at < ?"
_LAST = f"SELECT decided_at, {{}} {_INSIDE} AND {{}} ORDER BY decided_at DESC, step DESC LIMIT 1"
_RANGES = f"SELECT {', '.join(f'min({column}), max({column})' for column in _COLUMNS)} {_INSIDE}"
DENSE = 20
"""Number of steps in a bucket from which SQLite computes the buckets. With fewer, its queries take longer than reading
the steps.
"""

_Buckets = dict[str, list[float]]


def series(store: Store, name: str, start: float, end: float, points: int) -> dict[str, Any]:
    """The values for a plot. `t`: unix seconds of the last value in each bucket. Raises KeyError for a name outside
    NAMES.
    """
    points = max(1, min(points, MOST_POINTS))
    if _OF_STEPS.get(name) in _COLUMNS and _is_dense(store, start, end, points):
        return {"name": name} | _of_all(store, start, end, points)[_OF_STEPS[name]]
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
    return {"name": name} | _buckets(rows, start, end, points)


def _is_dense(store: Store, start: float, end: float, points: int) -> bool:
    first = store.value("SELECT step FROM steps WHERE decided_at >= ? ORDER BY decided_at LIMIT 1", (start,))
    last = store.value("SELECT step FROM steps WHERE decided_at <= ? ORDER BY decided_at DESC LIMIT 1", (end,))
    return first is not None and last is not None and last - first >= DENSE * points


def _of_all(store: Store, start: float, end: float, points: int) -> dict[str, _Buckets]:
    """What `_buckets` returns, for every column of the steps."""
    key = store.changes, start, end, points
    if store.kept is not None and store.kept[0] == key:
        kept: dict[str, _Buckets] = store.kept[1]
        return kept
    found: dict[str, _Buckets] = {column: {"t": [], "min": [], "max": [], "last": []} for column in _COLUMNS}
    after = math.nextafter(end, math.inf)
    edges = [*_edges(start, end, points), after]
    for low, high in itertools.pairwise(edges):
        inside = low, min(high, after)
        row = store.rows(_LAST.format(", ".join(_COLUMNS), "1"), inside)
        if not row:
            continue
        at, *lasts = row[0]
        ranges = iter(store.rows(_RANGES, inside)[0])
        for column, last, least, most in zip(_COLUMNS, lasts, ranges, ranges, strict=True):
            if least is None:
                continue  # no step has this figure
            whole = (at, last)
            if last is None:
                whole = store.rows(_LAST.format(column, f"{column} IS NOT NULL"), inside)[0]
            for values, value in zip(found[column].values(), (whole[0], least, most, whole[1]), strict=True):
                values.append(value)
    store.kept = key, found
    return found


def _edges(start: float, end: float, points: int) -> list[float]:
    """For each bucket the least time that `_buckets` puts into it or a later one."""
    width = _width(start, end, points)
    edges = []
    for number in range(points):
        edge = start + number * width  # rounded, so it may be a few floats off
        while (edge - start) / width >= number and edge > start:
            edge = math.nextafter(edge, -math.inf)
        while (edge - start) / width < number:
            edge = math.nextafter(edge, math.inf)
        edges.append(edge)
    return edges


def _width(start: float, end: float, points: int) -> float:
    return max(1e-9, (end - start) / points)


def _buckets(rows: list[tuple[Any, ...]], start: float, end: float, points: int) -> _Buckets:
    width = _width(start, end, points)
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
