"""The log page: events in words, read from the logs again."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import line_at
from peers.fold.trouble import TROUBLE_KINDS, in_words

MOST_LINES = 200
"""Largest number of lines of a page."""
_MOST_STARTS = 200
"""Largest number of starts of one peer whose lines are searched."""
_MOST_KINDS = 100


def event_lines(
    store: Store, *, actor: str = "", kinds: Collection[str] = (), before: float | None = None, limit: int = MOST_LINES
) -> dict[str, Any]:
    """Events in words, newest first. `actor`: an actor or a peer id. The result's `next` is the `before` of the
    following page.
    """
    limit = max(1, min(limit, MOST_LINES))
    where, values = ["at < ?"], [before if before is not None else 1e18]
    if actor:
        numbers = store.starts_of(actor)[:_MOST_STARTS]
        where.append(f"actor IN ({','.join('?' * len(numbers))})")
        values += numbers
    if kinds:
        known = [number for kind in list(kinds)[:_MOST_KINDS] if (number := store.known(kind)) is not None]
        where.append(f"kind IN ({','.join('?' * len(known))})")
        values += known
    query = f"SELECT at, source, log, offset, actor FROM lines WHERE {' AND '.join(where)} ORDER BY at DESC LIMIT ?"
    rows = store.rows(query, (*values, limit))
    found = [_line(store, *row) for row in rows]
    return {"lines": [line for line in found if line], "next": rows[-1][0] if len(rows) == limit else None}


def _line(store: Store, at: float, source: int, log: int, offset: int, actor: int) -> dict[str, Any] | None:
    try:
        record = json.loads(line_at(Path(store.name(log)), offset))
    except (ValueError, RecursionError):
        return None  # the log has disappeared or was replaced
    kind = str(record.get("kind"))
    severity = "warning" if kind in TROUBLE_KINDS else "info"
    who = store.name(actor) or None
    words = in_words(record)
    return {"at": at, "source": store.name(source), "kind": kind, "severity": severity, "text": words, "actor": who}
