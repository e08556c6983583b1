"""Notable events for the time bar. It has room for some hundred, and a long run has thousands."""

from __future__ import annotations

import json
from typing import Any

from peers.dashboard.history.store import Store
from peers.fold.faults import FaultRecord
from peers.fold.snapshot import load
from peers.fold.views.faults import fault_row

FAULT = "fault"
_ALL = (
    f"(SELECT at, '{FAULT}' AS kind, fault AS text, id FROM faults UNION ALL SELECT at, kind, text, NULL FROM marks) "
    "WHERE at BETWEEN ? AND ?"
)


def marks(store: Store, start: float, end: float, most: int) -> list[dict[str, Any]]:
    """At most `most` notable events in a span of time, oldest first."""
    counts = {
        kind: (count, first, last)
        for kind, count, first, last in store.rows(
            f"SELECT kind, count(*), min(at), max(at) FROM {_ALL} GROUP BY kind", (start, end)
        )
    }
    places = shares({kind: count for kind, (count, _, _) in counts.items()}, most)
    found = []
    for kind, (count, first, last) in counts.items():
        of_kind, values = f"FROM {_ALL} AND kind = ?", (start, end, kind)
        if count <= places[kind]:
            found += store.rows(f"SELECT at, kind, text, id {of_kind}", values)
        elif places[kind]:
            # the newest of each part of the time, so that lonely ones stay
            part = "GROUP BY min(?, CAST((at - ?) / ? AS INTEGER))"
            width = (last - first) / places[kind] or 1.0
            query = f"SELECT max(at), kind, text, id {of_kind} {part}"
            found += store.rows(query, (*values, places[kind] - 1, first, width))
    return [_mark(*row) for row in sorted(found, key=lambda row: row[0])]


def shares(counts: dict[str, int], most: int) -> dict[str, int]:
    """The number of places of each kind. No kind gets more than it needs; the others share what is left evenly."""
    found: dict[str, int] = {}
    for kind in sorted(counts, key=lambda kind: counts[kind]):
        found[kind] = min(counts[kind], (most - sum(found.values())) // (len(counts) - len(found)))
    return found


def _mark(at: float, kind: str, text: str, number: int | None) -> dict[str, Any]:
    if kind == FAULT:
        row = fault_row(load(FaultRecord, json.loads(text)))
        at, text = row["at"], f"{row['name'] + ' ' if row['name'] else ''}{row['word']}: {row['reason']}"
    return {"at": at, "kind": kind, "text": text, "id": number}
