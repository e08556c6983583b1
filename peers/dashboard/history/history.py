"""The history of a run: follows the logs of some homes, folds them, and answers questions about any moment.

It belongs to one thread. Call `follow` repeatedly; it returns soon, and is cheap if nothing is new.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sqlite3
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.heap import trim
from peers.dashboard.history import marks, series, timeline
from peers.dashboard.history.logs import Logs
from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import Line, line_at, record_of
from peers.fold import RunState, apply_record
from peers.fold.faults import MOST_FAULTS, FaultRecord
from peers.fold.reading import Malformed, Record, step_of
from peers.fold.snapshot import load
from peers.fold.trouble import TROUBLE_KINDS, in_words
from peers.fold.views.faults import fault_row
from peers.fold.work import Step

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
MOST_LINES = 200
_LOGS_NAMED = 3
"""Maximum number of logs that the warning of unreadable lines names."""
QUIET = frozenset(
    ("PeerWorked", "PassProgress", "TrafficMeasured", "ResourcesMeasured", "FrameRecovered", "LogContinued")
)
"""Kinds of events that the log page leaves out, because they are too frequent."""
MARKS = {
    "Evaluated": "evaluation",
    "CheckpointArchived": "checkpoint",
    "ControlGiven": "control",
    "CoordinatorStarted": "restart",
}


class Stopped(Exception):
    """The history is about to be closed, so the answer was given up."""


class History:
    """The history of a run. `now` and `at` return states that the next call may change: use them at once, and do not
    modify them.
    """

    _state: RunState
    _logs: Logs
    _store: Store
    _past: _Past | None
    _last_step: int

    def __init__(self, homes: Sequence[Path], database: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        """If the database cannot be used, a new one is made. If none can be written, the database is in memory."""
        self._homes = list(homes)
        self._database = database
        self._limit = limit_bytes
        self._taken = 0
        """Number of lines since this process started."""
        self._untidy = False
        """True if a past state was computed and the memory of its source can be freed."""
        self._stops = False
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
            if self._state.faults.number - self._faults_written > MOST_FAULTS // 2:
                self._write_faults()  # the state holds the newest ones only
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
        self._stops = True

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
        past = self._past
        made = (
            past is None
            or past.moment > moment
            or self._is_snapshot_between(past.moment, moment)
            or past.logs.have_changed()  # otherwise a log's new part, or another log, would never be read
        )
        if past is None or made:
            self._past = past = None  # two past states at once would need too much memory
            self._past = past = self._from_snapshot(moment)
        for line in past.logs.take(moment):
            if self._stops:
                raise Stopped
            record = record_of(line.raw, line.kind)
            if record is not None:
                apply_record(past.state, record, line.at, line.tail.source)
        past.moment = moment
        self._untidy = self._untidy or made
        return past.state

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
        rows = self._store.rows(query, (max(0, min(limit, MOST_LINES)), max(0, offset)))
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
        limit: int = MOST_LINES,
    ) -> dict[str, Any]:
        """Events in words, newest first. `actor`: an actor or a peer id. The result's `next` is the `before` of the
        following page.
        """
        store, limit = self._store, max(1, min(limit, MOST_LINES))
        where, values = ["at < ?"], [before if before is not None else 1e18]
        if actor:
            numbers = store.starts_of(actor)[:200]
            where.append(f"actor IN ({','.join('?' * len(numbers))})")
            values += numbers
        if kinds:
            known = [number for kind in list(kinds)[:100] if (number := store.known(kind)) is not None]
            where.append(f"kind IN ({','.join('?' * len(known))})")
            values += known
        query = f"SELECT at, source, log, offset, actor FROM lines WHERE {' AND '.join(where)} ORDER BY at DESC LIMIT ?"
        rows = store.rows(query, (*values, limit))
        found = [self._line(*row) for row in rows]
        return {"lines": [line for line in found if line], "next": rows[-1][0] if len(rows) == limit else None}

    def _line(self, at: float, source: int, log: int, offset: int, actor: int) -> dict[str, Any] | None:
        store = self._store
        try:
            record = json.loads(line_at(Path(store.name(log)), offset))
        except (ValueError, RecursionError):
            return None  # the log has disappeared or was replaced
        kind = str(record.get("kind"))
        severity = "warning" if kind in TROUBLE_KINDS else "info"
        who = store.name(actor) or None
        words = in_words(record)
        return {"at": at, "source": store.name(source), "kind": kind, "severity": severity, "text": words, "actor": who}

    # ------------------------------------------------------------ one line

    def _take(self, line: Line) -> None:
        self._taken += 1
        record = record_of(line.raw, line.kind)
        if record is None:
            line.tail.unreadable += 1
            return
        state, source = self._state, line.tail.source
        apply_record(state, record, line.at, source)
        actor = record.get("actor")
        actor = actor if type(actor) is str and len(actor) <= 80 else ""
        path = str(line.tail.path)
        if line.kind == "PeerWorked":
            self._take_work(record, actor, path, line.offset)
        elif line.kind not in QUIET:
            own = "" if source.startswith("coordinator") else source
            self._store.add_line(line.at, source, path, line.offset, line.kind, actor or own)
            self._take_news(record, line, state)

    def _take_work(self, record: Record, actor: str, path: str, offset: int) -> None:
        stage, pass_id = record.get("stage"), record.get("pass_id")
        if actor not in self._state.members.here or type(stage) is not int or type(pass_id) is not str:
            return
        try:
            step = step_of(pass_id)
        except Malformed:
            return
        self._store.add_work(step, actor, stage % (1 << 31), path, offset)

    def _take_news(self, record: Record, line: Line, state: RunState) -> None:
        kind, store = line.kind, self._store
        if kind in ("StepDecided", "StepMeasured"):
            self._take_steps(record.get("step"))
        elif state.run.step > self._last_step:  # reported only by coordinators other than the deciding one
            self._take_steps(*range(max(self._last_step + 1, state.run.step - 63), state.run.step + 1))
        if state.run.step < self._last_step:
            store.add("DELETE FROM steps WHERE step > ?", (state.run.step,))
            store.undo_work(state.run.step)
            store.add("DELETE FROM evaluations WHERE version > ?", (state.run.step + 1,))
        self._last_step = state.run.step
        if kind == "Evaluated" and state.results.evaluations:
            each = state.results.evaluations[-1]
            if each.at == line.at:
                store.add("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?)", (each.version, each.at, each.loss))
        if kind == "ControlGiven" and not (state.run.controls and state.run.controls[-1].at == line.at):
            return  # another coordinator of the group has reported it
        if (mark := MARKS.get(kind)) is not None:
            store.add("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", (line.at, mark, in_words(record)))

    def _take_steps(self, *numbers: object) -> None:
        for step in self._state.work.steps:
            if step.step in numbers:
                self._take_step(step)

    def _take_step(self, step: Step) -> None:
        state = self._state
        speed = step.tokens_per_second or (step.tokens / step.seconds if step.seconds else None)
        sent = min(sum(state.links.sent.values()), 2**62)
        values = (step.step, step.pass_id, step.opened_at, step.decided_at, step.seconds, step.loss, step.gradient_norm)
        more = (speed, step.ideal, step.efficiency, state.work.hour.goodput(), len(state.members.here), sent)
        query = f"INSERT OR REPLACE INTO steps VALUES ({','.join('?' * 14)})"
        self._store.add(query, (*values, *more, step.tokens))

    # ------------------------------------------------------------ the database

    def _open(self) -> None:
        """Start from the newest snapshot, if one fits the logs."""
        self._life += 1
        self._past = None
        self._told: dict[int, FaultRecord] = {}
        """For each fault, the version of its entry that was written last."""
        self._faults_written = 0
        """Number of the faults that there were when they were written last."""
        self._snapshot_events = 0
        self._snapshot_after = 0.0
        self._commits = 0
        self._state, self._logs = RunState(), Logs(self._homes)
        self._last_step = -1
        self._paths = timeline.Paths()
        self._store = self._opened()
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
        self._last_step = self._state.run.step
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
        self._state, self._logs, self._last_step = RunState(), Logs(self._homes), -1
        self._store = self._opened()

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
            self._write_faults()
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

    def _write_faults(self) -> None:
        kept: dict[int, FaultRecord] = {}
        for fault in self._state.faults.items:
            told = self._told.get(fault.id)
            if told != fault:
                told = dataclasses.replace(fault)
                values = (fault.id, fault.at, fault.step, json.dumps(dataclasses.asdict(fault)))
                self._store.add("INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?)", values)
            kept[fault.id] = told
        self._told = kept
        self._faults_written = self._state.faults.number

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

    # ------------------------------------------------------------ replay

    def _is_snapshot_between(self, start: float, end: float) -> bool:
        return bool(self._store.value("SELECT count(*) FROM snapshots WHERE at > ? AND at <= ?", (start, end)))

    def _from_snapshot(self, moment: float) -> _Past:
        logs = Logs(self._homes)
        with contextlib.suppress(sqlite3.Error, KeyError, TypeError, ValueError):
            found = self._store.snapshot(moment)
            if found is not None:
                logs.restore(found[1])
                logs.look()
                return _Past(moment, RunState.from_lines(found[2]), logs)
        logs = Logs(self._homes)
        logs.look()
        return _Past(moment, RunState(), logs)


@dataclasses.dataclass(slots=True)
class _Past:
    moment: float
    state: RunState
    logs: Logs
