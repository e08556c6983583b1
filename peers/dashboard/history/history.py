"""The history of a run: follows the logs of some homes, folds them, and answers questions about any moment.

It belongs to one thread. Call `follow` repeatedly; it returns soon, and is cheap if nothing is new.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.heap import trim
from peers.dashboard.history import event_lines, marks, series, timeline
from peers.dashboard.history.logs import Logs
from peers.dashboard.history.recording import Recording
from peers.dashboard.history.replay import Replay
from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import Line, record_of
from peers.fold import RunState, apply_record
from peers.fold.faults import FaultRecord
from peers.fold.snapshot import load
from peers.fold.views.faults import fault_row

LIMIT_BYTES = 512 << 20
LEAST_FREE_BYTES = 1 << 30
"""The database does not grow if its disk has less free space than this."""
RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0
"""Seconds until the next attempt after the database could not be written, and their maximum. An attempt reads all logs
again.
"""
CORRECT_EVERY_S = 3600.0
"""Least number of seconds between two times that all logs are read again because the clock of a machine jumped."""
SNAPSHOT_EVENTS = 20_000
SNAPSHOT_SHARE = 0.2
"""Limit of the fraction of time that is spent on snapshots."""
BUDGET_S = 0.2
MOST_WAITING = 20_000
"""Number of waiting rows at which they are written."""
MOST_FAULT_ROWS = 200
"""Largest number of faults of an answer."""
_LOGS_NAMED = 3
"""Maximum number of logs that the warning of unreadable lines names."""


class History:
    """The history of a run. `now` and `at` return states that the next call may change: use them at once, and do not
    modify them.
    """

    _state: RunState
    _logs: Logs
    _store: Store
    _recording: Recording

    def __init__(self, homes: Sequence[Path], database: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        """If the database cannot be used, a new one is made. If none can be written, the database is in memory."""
        self._homes = list(homes)
        self._database = database
        self._limit = limit_bytes
        self._taken = 0
        """Number of lines since this process started."""
        self._untidy = False
        """True if a past state was computed and the memory of its source can be freed."""
        self._replay = Replay(self._homes)
        self._life = 0
        self._trouble = ""
        """The reason why the database does not grow; empty: it does."""
        self._retry_at, self._retry_s = 0.0, RETRY_S
        self._correct_after = 0.0
        """Monotonic seconds after which the logs may be read again because of a clock."""
        self._open()

    # ------------------------------------------------------------ following

    def follow(self, budget_s: float = BUDGET_S) -> bool:
        """Read new lines for about `budget_s` seconds. Return True if there are more."""
        until = time.monotonic() + budget_s
        replaced = self._logs.look()
        self._rename()
        if replaced or self._is_gone() or self._should_correct():
            self._forget()
        more = False
        before = self._taken
        for line in self._logs.take():
            self._take(line)
            if self._taken % 64 == 63:
                if time.monotonic() > until:
                    more = True
                    break
                if self._store.waiting > MOST_WAITING:
                    self._write()
        if self._taken != before:
            self._write()
        if more:
            return True
        if self._untidy:
            self._untidy = False
            trim()
        if not self._trouble:
            self._retry_s = RETRY_S
        elif time.monotonic() >= self._retry_at and self._has_room():
            self._resume()
            return True
        return False

    def stop(self) -> None:
        """End a question that takes long: it raises Stopped. Any thread may call this, once, before `close`."""
        self._replay.stop()

    def close(self) -> None:
        """Save the reading positions, so that nothing needs to be read again."""
        with contextlib.suppress(sqlite3.Error, OSError):
            if not self._trouble:
                self._snapshot()
        self._store.close()

    @property
    def now(self) -> RunState:
        return self._state

    @property
    def position(self) -> str:
        """A text that changes whenever something was read."""
        return f"{self._life}-{self._taken}"

    @property
    def edition(self) -> str:
        """A text that changes whenever what was read about the past may have changed: all logs were read again, or a
        log or a part of one was added.
        """
        return f"{self._life}-{len(self._logs.tails)}"

    @property
    def progress(self) -> float:
        """The fraction of the logs' bytes that have been read; 1 if there are no logs."""
        read, size = self._logs.progress()
        return read / size if size else 1.0

    @property
    def span(self) -> tuple[float, float]:
        """Unix seconds of the first and the last event; zeros if there is no event yet."""
        return self._state.run.first_at or 0.0, self._state.run.last_at

    @property
    def warnings(self) -> list[str]:
        told = [self._trouble] if self._trouble else []
        count, logs = self._logs.unreadable()
        if count:
            more = f" and {len(logs) - _LOGS_NAMED} other logs" if len(logs) > _LOGS_NAMED else ""
            lines = f"{count:,} lines" if count > 1 else "1 line"
            named = ", ".join(logs[:_LOGS_NAMED])
            told.append(f"{lines} of {named}{more} cannot be read, so what they say is missing here")
        return told

    # ------------------------------------------------------------ the past

    def at(self, moment: float) -> RunState:
        """The state at `moment`, in unix seconds. Raises Stopped."""
        if moment >= self._state.run.last_at:
            return self._state
        state, is_anew = self._replay.at(moment, self._store)
        self._untidy = self._untidy or is_anew
        return state

    def series(self, name: str, start: float, end: float, points: int) -> dict[str, Any]:
        """The values of a figure over time. Raises KeyError for a name outside series.NAMES."""
        return series.series(self._store, name, start, end, points)

    def timeline(self, first: int, last: int, *, offset: int = 0, limit: int = 200) -> dict[str, Any]:
        """What every peer did in steps `first` to `last`, at most 16."""
        return timeline.timeline(self._store, self._paths, first, last, offset, limit)

    def marks(self, start: float, end: float, most: int) -> list[dict[str, Any]]:
        """Notable events in a span of time, oldest first. If there are too many, each kind is thinned out evenly."""
        return marks.marks(self._store, start, end, most)

    def faults(self, offset: int = 0, limit: int = 200) -> list[dict[str, Any]]:
        """All faults so far, newest first."""
        query = "SELECT fault FROM faults ORDER BY id DESC LIMIT ? OFFSET ?"
        rows = self._store.rows(query, (max(0, min(limit, MOST_FAULT_ROWS)), max(0, offset)))
        return [fault_row(load(FaultRecord, json.loads(raw))) for (raw,) in rows]

    def steps_of(self, actor: str, most: int = 64) -> list[dict[str, Any]]:
        """A peer's last steps, newest first, with its work in each."""
        return timeline.steps_of(self._store, actor, most)

    def steps_after(self, step: int, limit: int) -> list[tuple[Any, ...]]:
        """The decided steps after this one: time, step, loss, gradient norm, tokens/s, seconds, efficiency."""
        return self._store.rows(
            "SELECT decided_at, step, loss, gradient_norm, tokens_per_second, seconds, efficiency FROM steps "
            "WHERE step > ? ORDER BY step LIMIT ?",
            (step, limit),
        )

    def kept_step(self, step: int, decided_at: float) -> int:
        """`step`, which was decided at `decided_at`, or the last step before it that no rollback has undone since; -1:
        all were undone. Without all events until then, `step`.
        """
        stored = not self._trouble or self._store.path is None
        if not stored or self.span[1] <= decided_at:
            return step
        query = "SELECT max(step) FROM steps WHERE step <= ? AND decided_at <= ?"
        found = self._store.value(query, (step, decided_at))
        return -1 if found is None else int(found)

    def evaluations_after(self, version: int, limit: int) -> list[tuple[Any, ...]]:
        """The evaluations after this one: time, version, loss."""
        return self._store.rows(
            "SELECT at, version, loss FROM evaluations WHERE version > ? ORDER BY version, at LIMIT ?", (version, limit)
        )

    def lines(
        self,
        *,
        actor: str = "",
        kinds: Collection[str] = (),
        before: float | None = None,
        limit: int = event_lines.MOST_LINES,
    ) -> dict[str, Any]:
        """Events in words, newest first. `actor`: an actor or a peer id. The result's `next` is the `before` of the
        following page.
        """
        return event_lines.event_lines(self._store, actor=actor, kinds=kinds, before=before, limit=limit)

    # ------------------------------------------------------------ one line

    def _take(self, line: Line) -> None:
        self._taken += 1
        record = record_of(line.raw, line.kind)
        if record is None:
            line.tail.unreadable += 1
            return
        apply_record(self._state, record, line.at, line.tail.source)
        self._recording.take(line, record)

    # ------------------------------------------------------------ the database

    def _open(self) -> None:
        """Start from the newest snapshot, if one fits the logs."""
        self._life += 1
        self._replay.forget()
        self._snapshot_events = 0
        self._snapshot_after = 0.0
        self._commits = 0
        self._paths = timeline.Paths()
        self._begin()
        found = None
        with contextlib.suppress(sqlite3.Error, ValueError):
            found = self._store.snapshot()
        if found is None:
            if self._store.value("SELECT count(*) FROM lines"):
                self._make_anew()
            return
        line, logs, state = found
        try:
            self._logs.restore(logs)
            self._state = RunState.from_lines(state)
        except (KeyError, TypeError, ValueError):
            self._make_anew()
            return
        if {str(home) for home in self._homes} != self._homes_of(logs) or self._logs.look():
            self._make_anew()
            return
        self._rename()
        try:
            self._store.cut_lines(line)
        except sqlite3.Error:
            self._make_anew()
            return
        self._recording = Recording(self._store, self._state)
        self._snapshot_events = self._state.events

    def _rename(self) -> None:
        """Parts of logs have been renamed to dated names: update the rows that refer to them."""
        for old, new in self._logs.take_renamed():
            with contextlib.suppress(sqlite3.Error):
                self._store.rename(old, new)

    def _homes_of(self, logs: dict[str, Any]) -> set[str]:
        return {str(home) for home in self._homes if any(Path(path).is_relative_to(home) for path in logs["tails"])}

    def _opened(self) -> Store:
        for _ in range(2):
            try:
                return Store(self._database)
            except (sqlite3.Error, OSError) as error:
                why = str(error)
                self._delete()
        self._fails(f"the dashboard keeps its history in memory only: {self._database}: {why}")
        return Store(None)

    def _make_anew(self) -> None:
        self._store.close()
        self._delete()
        self._begin()

    def _begin(self) -> None:
        """Start with nothing read."""
        self._state, self._logs, self._store = RunState(), Logs(self._homes), self._opened()
        self._recording = Recording(self._store, self._state)

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                self._database.with_name(self._database.name + suffix).unlink(missing_ok=True)

    def _forget(self) -> None:
        """The logs or the database were replaced: read everything again."""
        self._store.close()
        self._delete()
        self._open()
        self._logs.look()

    def _should_correct(self) -> bool:
        """True if times in the logs were misread, and the logs were not read again for this reason lately: a clock
        may jump again and again.
        """
        if not self._logs.is_misread or time.monotonic() < self._correct_after:
            return False
        self._correct_after = time.monotonic() + CORRECT_EVERY_S
        return True

    def _is_gone(self) -> bool:
        """True if the database was deleted."""
        if self._store.path is None:
            return False
        try:
            return self._store.path.stat().st_ino != self._store.inode
        except OSError:
            return True

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self._database.parent).free >= LEAST_FREE_BYTES
        except OSError:
            return False

    def _write(self) -> None:
        if self._store.path is not None and not self._has_room():
            self._trouble = (
                f"the dashboard stores no further history: less than {LEAST_FREE_BYTES >> 30} GB is free at "
                f"{self._database.parent}"
            )
        if self._trouble and self._store.path is not None:
            self._store.drop()
            return
        try:
            self._recording.write_faults()
            self._store.commit()
            self._commits += 1
            if self._commits % 16 == 0 and self._store.nbytes > self._limit:
                self._store.shrink(self._limit)
            if self._state.events - self._snapshot_events >= SNAPSHOT_EVENTS:
                self._snapshot()
        except sqlite3.Error as error:
            self._fails(f"the dashboard stores no further history: {self._database}: {error}")
            self._store.drop()

    def _fails(self, why: str) -> None:
        self._trouble = why
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _snapshot(self) -> None:
        """Take a snapshot, if following has taken long enough since the last one."""
        if time.thread_time() < self._snapshot_after:
            return
        began = time.thread_time()
        state = self._state
        if state.events != self._snapshot_events:
            self._store.add_snapshot(state.run.last_at, state.events, self._logs.to_json(), state.to_lines())
            self._snapshot_events = state.events
            trim()
        now = time.thread_time()
        self._snapshot_after = now + (now - began) / SNAPSHOT_SHARE

    def _resume(self) -> None:
        """Resume if there is room again, and read again what was not written."""
        self._trouble = ""
        self._store.close()
        self._open()
