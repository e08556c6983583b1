"""A database of rows made from the logs. Rows are collected, and written together. Its tables:

steps        a row for each decided step that was not rolled back
evaluations  a row for each held-out loss of a version that was not rolled back
faults       the newest state of each fault
marks        what the time bar marks, without the faults
work         the place in a log of each peer's report about a step
lines        the place in a log of every other event
snapshots    the state at some instants, and how far each log had been read
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = 3
"""Raised when tables change. A database of another format is replaced."""
MOST_SNAPSHOTS = 200
MOST_NAMES = 20_000
"""Number of names that are kept in memory."""
_PIECE = 16_384
"""Bytes of a packed snapshot that are unpacked at once."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY, pass_id TEXT, opened_at REAL, decided_at REAL, seconds REAL, loss REAL,
    gradient_norm REAL, tokens_per_second REAL, ideal REAL, efficiency REAL, goodput REAL, peers INTEGER,
    sent INTEGER, tokens INTEGER);
CREATE INDEX IF NOT EXISTS steps_by_time ON steps (decided_at);
CREATE TABLE IF NOT EXISTS evaluations (version INTEGER, at REAL, loss REAL, PRIMARY KEY (version, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS faults (id INTEGER PRIMARY KEY, at REAL, step INTEGER, fault TEXT);
CREATE INDEX IF NOT EXISTS faults_by_time ON faults (at);
CREATE INDEX IF NOT EXISTS faults_by_step ON faults (step);
CREATE TABLE IF NOT EXISTS marks (at REAL, kind TEXT, text TEXT, PRIMARY KEY (at, kind, text)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS work (
    step INTEGER, actor INTEGER, stage INTEGER, log INTEGER, offset INTEGER, PRIMARY KEY (step, actor)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lines (
    id INTEGER PRIMARY KEY, at REAL, source INTEGER, log INTEGER, offset INTEGER, kind INTEGER, actor INTEGER);
CREATE INDEX IF NOT EXISTS lines_by_time ON lines (at);
CREATE INDEX IF NOT EXISTS lines_by_actor ON lines (actor, at);
CREATE INDEX IF NOT EXISTS lines_by_kind ON lines (kind, at);
CREATE TABLE IF NOT EXISTS snapshots (at REAL, line INTEGER, events INTEGER PRIMARY KEY, logs TEXT, state BLOB);
"""


class Store:
    """The database. Its methods raise sqlite3.Error. `path` None: in memory, if no file can be written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(":memory:" if path is None else str(path), check_same_thread=False)
        self._base.isolation_level = None
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")
        self._base.executescript(_TABLES)
        found = self.value("SELECT value FROM meta WHERE key = 'format'")
        if found is None:
            self.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
        elif found != str(FORMAT):
            raise sqlite3.DatabaseError(f"{path} has format {found}, not {FORMAT}")
        self._names: dict[str, int] = {}  # the oldest comes first
        self._new_names: dict[str, int] = {}
        """Names that are not yet written."""
        self._next_name = (self.value("SELECT max(id) FROM names") or 0) + 1
        self._next_line = (self.value("SELECT max(id) FROM lines") or 0) + 1
        self._lines: list[tuple[Any, ...]] = []
        self._work: list[tuple[Any, ...]] = []
        self._rows: list[tuple[str, tuple[Any, ...]]] = []
        self.inode = None if path is None else path.stat().st_ino
        self.kept: tuple[Any, Any] | None = None
        """The last result that took long, with what it depends on (history/series.py)."""

    # ------------------------------------------------------------ reading

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._base.execute(query, values).fetchall()

    def value(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        row = self._base.execute(query, values).fetchone()
        return None if row is None else row[0]

    @property
    def changes(self) -> int:
        """A number that grows with every row that this process writes."""
        return self._base.total_changes

    def name(self, number: int) -> str:
        return _loaded(self.value("SELECT name FROM names WHERE id = ?", (number,)) or "")

    def number(self, name: str) -> int:
        """The number that stands for a name in the tables. It is made at first use."""
        found = None
        with contextlib.suppress(sqlite3.Error):  # writing fails too then, and its error is reported
            found = self.known(name)
        if found is None:
            found = self._new_names[name] = self._next_name
            self._next_name += 1
            self._rows.append(("INSERT OR REPLACE INTO names VALUES (?, ?)", (found, _stored(name))))
        return found

    def known(self, name: str) -> int | None:
        found = self._names.get(name) or self._new_names.get(name)
        if found is None:
            found = self.value("SELECT id FROM names WHERE name = ?", (_stored(name),))
            if found is not None:
                self._names[name] = found
                if len(self._names) > MOST_NAMES:
                    del self._names[next(iter(self._names))]
        return found

    def starts_of(self, peer: str) -> list[int]:
        """The numbers of all actors that are starts of this peer. If the text is an actor, the number of this actor."""
        query = "SELECT id FROM names WHERE name = ? OR (name > ? AND name < ?) ORDER BY id"
        prefix = _stored(f"{peer}."), _stored(f"{peer}/")  # a slash follows the dot
        return [number for (number,) in self.rows(query, (_stored(peer), *prefix))]

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`. Afterwards `old` may name something else."""
        number = self.known(old)
        if number is None or self.known(new) is not None:
            return  # no rows, or they have the right name already
        self.commit()
        self.execute("UPDATE names SET name = ? WHERE id = ?", (_stored(new), number))
        self._names.pop(old, None)

    # ------------------------------------------------------------ writing

    def add_line(self, at: float, source: str, log: str, offset: int, kind: str, actor: str) -> None:
        numbers = self.number(source), self.number(log), offset, self.number(kind), self.number(actor) if actor else 0
        self._lines.append((self._next_line, at, *numbers))
        self._next_line += 1

    def add_work(self, step: int, actor: str, stage: int, log: str, offset: int) -> None:
        self._work.append((step, self.number(actor), stage, self.number(log), offset))

    def undo_work(self, step: int) -> None:
        """Remove the reports about later steps."""
        self._work = [row for row in self._work if row[0] <= step]
        self.add("DELETE FROM work WHERE step > ?", (step,))

    def add(self, query: str, values: tuple[Any, ...]) -> None:
        whole = (_whole(value) if isinstance(value, str) else value for value in values)
        self._rows.append((query, tuple(whole)))

    @property
    def waiting(self) -> int:
        """Number of rows that are not yet written."""
        return len(self._lines) + len(self._work) + len(self._rows)

    def drop(self) -> None:
        """Forget unwritten rows."""
        self._lines, self._work, self._rows, self._new_names = [], [], [], {}

    def commit(self) -> None:
        lines, work, rows = self._lines, self._work, self._rows
        self._lines, self._work, self._rows = [], [], []
        if not (lines or work or rows):
            return
        self.execute("BEGIN")
        try:
            for query, values in rows:
                self.execute(query, values)
            self._base.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", lines)
            self._base.executemany("INSERT OR REPLACE INTO work VALUES (?, ?, ?, ?, ?)", work)
            self.execute("COMMIT")
        except sqlite3.Error:
            self._base.rollback()
            raise
        self._new_names = {}

    def add_snapshot(self, at: float, events: int, logs: dict[str, Any], lines: Iterator[str]) -> None:
        """Write a snapshot at once, together with all waiting rows. `lines`: the lines of the state."""
        squeeze = zlib.compressobj(1)
        blob = b"".join(squeeze.compress(line.encode() + b"\n") for line in lines) + squeeze.flush()
        values = at, self._next_line - 1, events, json.dumps(logs), blob
        self.add("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", values)
        self.commit()
        events_of = [row[0] for row in self.rows("SELECT events FROM snapshots ORDER BY events")]
        if len(events_of) > MOST_SNAPSHOTS:
            for each in events_of[1:-8:2]:
                self.execute("DELETE FROM snapshots WHERE events = ?", (each,))

    def snapshot(self, until: float | None = None) -> tuple[int, dict[str, Any], Iterator[bytes]] | None:
        """The newest snapshot not after `until`: number of log lines read by then, positions in the logs, lines of the
        state.
        """
        where, values = ("WHERE at <= ?", (until,)) if until is not None else ("", ())
        found = self.rows(f"SELECT line, logs, state FROM snapshots {where} ORDER BY events DESC LIMIT 1", values)
        if not found:
            return None
        line, logs, blob = found[0]
        return line, json.loads(logs), _unpacked(blob)

    def cut_lines(self, last: int) -> None:
        """Remove later lines, which will be read again."""
        self.execute("DELETE FROM lines WHERE id > ?", (last,))
        self._next_line = last + 1

    @property
    def nbytes(self) -> int:
        """Bytes in use, without free pages, which will be reused."""
        pages, free, size = (self.value(f"PRAGMA {what}") for what in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * size)

    def shrink(self, limit: int) -> None:
        """Shrink below nine tenths of `limit`: the oldest reports of work go first, then lines, then snapshots. Names
        that are then in no row go too.
        """
        for table, key in (("work", "step"), ("lines", "id"), ("snapshots", "events")):
            while self.nbytes > 0.9 * limit:
                first, last = self.rows(f"SELECT min({key}), max({key}) FROM {table}")[0]
                if first is None or first >= last:
                    break
                self.execute(f"DELETE FROM {table} WHERE {key} <= ?", (first + (last - first) // 8,))
        used = "SELECT source FROM lines UNION SELECT log FROM lines UNION SELECT kind FROM lines UNION SELECT actor"
        used += " FROM lines UNION SELECT actor FROM work UNION SELECT log FROM work"
        self.execute(f"DELETE FROM names WHERE id NOT IN ({used})")
        self._names = {}

    def execute(self, query: str, values: tuple[Any, ...] = ()) -> None:
        self._base.execute(query, values)

    def close(self) -> None:
        self._base.close()


def _stored(name: str) -> str | bytes:
    """A name as the database takes it. A path need not be UTF-8: Python then has surrogates in its text, which SQLite
    refuses.
    """
    return name if _whole(name) == name else name.encode("utf-8", "surrogatepass")


def _loaded(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogatepass")


def _whole(text: str) -> str:
    """A text to show, without surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unpacked(blob: bytes) -> Iterator[bytes]:
    """The lines of a snapshot, unpacked piece by piece. Raises ValueError if it is damaged."""
    unpack, rest = zlib.decompressobj(), b""
    try:
        for start in range(0, len(blob), _PIECE):
            *lines, rest = (rest + unpack.decompress(blob[start : start + _PIECE])).split(b"\n")
            yield from lines
    except zlib.error as error:
        raise ValueError(f"a damaged snapshot: {error}") from None
