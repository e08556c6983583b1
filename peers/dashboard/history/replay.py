"""The state of a run at a moment of its past: the last snapshot before it, and the log lines since."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.dashboard.history.logs import Logs
from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import record_of
from peers.fold import RunState, apply_record


class Stopped(Exception):
    """The history is about to be closed, so the answer was given up."""


class Replay:
    """Keeps the last state that it computed: a later moment continues from it, unless a snapshot is nearer."""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = homes
        self._past: _Past | None = None
        self._stops = False

    def stop(self) -> None:
        """End an answer that takes long: it raises Stopped. Any thread may call this, once."""
        self._stops = True

    def forget(self) -> None:
        """The logs or the database were replaced."""
        self._past = None

    def at(self, moment: float, store: Store) -> tuple[RunState, bool]:
        """The state at `moment`, in unix seconds, and whether it was computed from a snapshot. Raises Stopped."""
        past = self._past
        anew = (
            past is None
            or past.moment > moment
            or _is_snapshot_between(store, past.moment, moment)
            or past.logs.have_changed()  # otherwise a log's new part, or another log, would never be read
        )
        if past is None or anew:
            self._past = past = None  # two past states at once would need too much memory
            self._past = past = self._from_snapshot(moment, store)
        for line in past.logs.take(moment):
            if self._stops:
                raise Stopped
            record = record_of(line.raw, line.kind)
            if record is not None:
                apply_record(past.state, record, line.at, line.tail.source)
        past.moment = moment
        return past.state, anew

    def _from_snapshot(self, moment: float, store: Store) -> _Past:
        logs = Logs(self._homes)
        with contextlib.suppress(sqlite3.Error, KeyError, TypeError, ValueError):
            found = store.snapshot(moment)
            if found is not None:
                logs.restore(found[1])
                logs.look()
                return _Past(moment, RunState.from_lines(found[2]), logs)
        logs = Logs(self._homes)
        logs.look()
        return _Past(moment, RunState(), logs)


def _is_snapshot_between(store: Store, start: float, end: float) -> bool:
    return bool(store.value("SELECT count(*) FROM snapshots WHERE at > ? AND at <= ?", (start, end)))


@dataclass(slots=True)
class _Past:
    moment: float
    state: RunState
    logs: Logs
