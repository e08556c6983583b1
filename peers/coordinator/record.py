"""The decision record: SQLite, one row per decided step. A step is committed when its row is durable; only then are
peers told.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path

from swarm.protocol.ids import StepNumber, Term
from swarm.protocol.messages import CodecPair, Command, Contribution, Decision, StageOutcome
from swarm.protocol.soundness import Soundness
from swarm.protocol.update import Update


class RecordError(ValueError):
    """The record on disk belongs to another run or cannot be read."""


class DecisionRecord:
    """The `write_*` methods return when the data are on disk (SQLite, synchronous=FULL). Used from one thread at a
    time. All methods and properties raise RecordError if the file is damaged.
    """

    def __init__(self, path: Path, run_hash: str, changed: str = "") -> None:
        """Open or create the record of a run. The record of another run is taken over if nothing has happened in that
        run yet. `changed`: how that run differs, in brackets, for the message.

        Raises RecordError.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with refusing(path), contextlib.ExitStack() as stack:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            stack.callback(self._db.close)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO run(id, hash, term) VALUES (0, ?, 0)", (run_hash,))
            _take_over(self._db, run_hash)
            _check_run(self._db, path, run_hash, changed)
            stack.pop_all()

    @property
    def term(self) -> int:
        with refusing(self._path), of_a_row():
            return int(self._db.execute("SELECT term FROM run").fetchone()[0])

    @property
    def rolled_back_in(self) -> int:
        """The term of the last rollback; 0: there was none."""
        with refusing(self._path), of_a_row():
            return int(self._db.execute("SELECT COALESCE(MAX(term), 0) FROM rollback").fetchone()[0])

    def voids(self, version: int, term: int) -> bool:
        """Return True if a rollback after `term` has gone back to before `version`: this version of that term is void.

        Raises RecordError.
        """
        query = "SELECT 1 FROM rollback WHERE term > ? AND version < ?"
        with refusing(self._path):
            return self._db.execute(query, (term, version)).fetchone() is not None

    @property
    def unfinished_rollback(self) -> int | None:
        """The version to which a rollback has gone back, if the archive may still hold later versions of the history
        before. None: it holds none.
        """
        with refusing(self._path):
            (version,) = self._db.execute("SELECT MIN(version) FROM unfinished_rollback").fetchone()
            return None if version is None else int(version)

    def finish_rollback(self) -> None:
        """The archive holds nothing of the history before. Raises RecordError if the disk is full or fails."""
        with refusing(self._path):
            self._db.execute("DELETE FROM unfinished_rollback")

    @property
    def last_decision(self) -> Decision | None:
        """The newest decision that no rollback voided. None: the next step is 0."""
        with refusing(self._path):
            row = self._db.execute("SELECT body FROM decision ORDER BY step DESC LIMIT 1").fetchone()
            return None if row is None else decode_decision(row[0])

    @property
    def soundness(self) -> Soundness:
        """What the decisions that were not rolled back show about the soundness of the parameters."""
        with refusing(self._path):
            (proven,) = self._db.execute("SELECT COALESCE(MAX(version), 0) FROM proven").fetchone()
            back = self._db.execute("SELECT version FROM rollback ORDER BY term DESC LIMIT 1").fetchone()
            skipped = 0
            for (body,) in self._db.execute("SELECT body FROM decision ORDER BY step DESC"):
                decision = decode_decision(body)
                if not decision.skip:
                    return Soundness(max(proven, decision.step), skipped)
                skipped += back is None or decision.step >= back[0]  # not those before a rollback
            return Soundness(proven, skipped)

    @property
    def commands(self) -> list[Command]:
        """All commands of the organiser, in order. No rollback voids a command."""
        with refusing(self._path):
            rows = self._db.execute("SELECT body FROM command ORDER BY number")
            return [decode_command(body) for (body,) in rows]

    def write_command(self, command: Command) -> None:
        """Write a command. Raises RecordError if the disk is full or fails."""
        with refusing(self._path):
            self._add_command(command)

    def write_term(self, term: int, rollback_to: int | None) -> None:
        """Write the beginning of a term. Raises RecordError if the disk is full or fails."""
        with refusing(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            self._set_term(term, rollback_to)
            self._db.execute("COMMIT")

    def write_decision(self, decision: Decision) -> None:
        """Write a decision. Raises RecordError if the disk is full or fails.

        Raises sqlite3.IntegrityError if the step is already decided: a step is never decided twice.
        """
        with refusing(self._path):
            self._add(decision)

    def _set_term(self, term: int, rollback_to: int | None) -> None:
        self._db.execute("UPDATE run SET term = ?", (term,))
        if rollback_to is not None:
            self._db.execute("INSERT INTO rollback(term, version) VALUES (?, ?)", (term, rollback_to))
            self._db.execute("INSERT OR IGNORE INTO unfinished_rollback(version) VALUES (?)", (rollback_to,))
            undone = self._db.execute("SELECT body FROM decision WHERE step >= ?", (rollback_to,))
            proven = any(not decode_decision(body).skip for (body,) in undone)
            proven = proven or self._db.execute("SELECT 1 FROM proven WHERE version >= ?", (rollback_to,)).fetchone()
            self._db.execute("DELETE FROM proven WHERE version > ?", (rollback_to,))
            if proven:
                self._db.execute("INSERT OR IGNORE INTO proven(version) VALUES (?)", (rollback_to,))
            self._db.execute("DELETE FROM decision WHERE step >= ?", (rollback_to,))

    def _add(self, decision: Decision) -> None:
        self._db.execute("INSERT INTO decision(step, body) VALUES (?, ?)", (decision.step, encode_decision(decision)))

    def _add_command(self, command: Command) -> None:
        self._db.execute("INSERT INTO command(number, body) VALUES (?, ?)", (command.number, encode_command(command)))

    def close(self) -> None:
        self._db.close()


def read_decisions(path: Path, run_hash: str) -> list[Decision]:
    """Return all decisions in the record at `path`, by step. Changes neither the record nor its folder.

    Raises RecordError.
    """
    with _reading(path, run_hash) as db:
        return [decode_decision(body) for (body,) in db.execute("SELECT body FROM decision ORDER BY step")]


def read_commands(path: Path, run_hash: str) -> list[Command]:
    """Return all commands in the record at `path`, in order. Changes neither the record nor its folder.

    Raises RecordError.
    """
    with _reading(path, run_hash) as db:
        return [decode_command(body) for (body,) in db.execute("SELECT body FROM command ORDER BY number")]


@contextlib.contextmanager
def _reading(path: Path, run_hash: str) -> Iterator[sqlite3.Connection]:
    # Without a log file beside it, no process has the record open. It is then read as it is, because SQLite would
    # create such a log.
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if log.exists() else "mode=ro&immutable=1"
    with refusing(path), contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
        _check_run(db, path, run_hash)
        yield db


_SCHEMA = """
CREATE TABLE IF NOT EXISTS run(id INTEGER PRIMARY KEY CHECK (id = 0), hash TEXT NOT NULL, term INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS decision(step INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS command(number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rollback(term INTEGER PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS unfinished_rollback(version INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS proven(version INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS ballot(
    id INTEGER PRIMARY KEY CHECK (id = 0), ballot INTEGER NOT NULL, vote TEXT NOT NULL, committed INTEGER NOT NULL);
INSERT OR IGNORE INTO ballot VALUES (0, 0, '', 0);
CREATE TABLE IF NOT EXISTS log(
    place INTEGER PRIMARY KEY, ballot INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
"""

_EMPTY = """
SELECT NOT EXISTS (SELECT 1 FROM decision) AND NOT EXISTS (SELECT 1 FROM rollback)
AND NOT EXISTS (SELECT 1 FROM log WHERE kind NOT IN ('term', 'command'))
"""


def _take_over(db: sqlite3.Connection, run_hash: str) -> None:
    """Take over the record of another run if nothing has happened in that run yet."""
    (found,) = db.execute("SELECT hash FROM run").fetchone()
    if found == run_hash or not db.execute(_EMPTY).fetchone()[0]:
        return
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE run SET hash = ?", (run_hash,))
    if db.execute("DELETE FROM log").rowcount:  # terms of a group of the other run
        db.execute("UPDATE run SET term = 0")
    db.execute("DELETE FROM command")  # commands to the other run
    db.execute("UPDATE ballot SET ballot = 0, vote = '', committed = 0")
    db.execute("COMMIT")


def _check_run(db: sqlite3.Connection, path: Path, run_hash: str, changed: str = "") -> None:
    row = db.execute("SELECT hash FROM run").fetchone()
    found = "" if row is None else str(row[0])
    if found != run_hash:
        raise RecordError(
            f"{path} records run {found[:16]}…, RUN.toml resolves to {run_hash[:16]}…{changed}: a run never changes. "
            "Restore the RUN.toml, the --set and the corpus it was started with, or give the new run its own --home"
        )


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into RecordError. The message advises to remove the file only if the file is damaged,
    because the record is the run.
    """
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", _DAMAGED) & 0xFF in _PASSING:
            raise RecordError(
                f"{path} cannot be used now: {error}; check whether another program has it open, whether you may "
                "write to it, and whether its disk is full or broken. Then start again: nothing is lost"
            ) from None
        raise RecordError(
            f"{path} is not a decision record: {error}; restore the whole home from a backup. Without one, start the "
            "run from the beginning: move this file and archive/ away"
        ) from None


_DAMAGED = sqlite3.SQLITE_CORRUPT
"""The meaning of an error without a code: a text that is not UTF-8, or a row that no record has."""
_PASSING = frozenset(
    (
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOLFS,
    )
)
"""Causes outside of the file, by SQLite's primary code."""


def encode_decision(decision: Decision) -> str:
    return json.dumps(
        {
            "term": decision.term,
            "step": decision.step,
            "scale": decision.scale.hex(),
            "loss_sum": decision.loss_sum.hex(),
            "tokens": decision.tokens,
            "gradient_norm": decision.gradient_norm.hex(),
            "outcomes": [[o.number, o.digest] for o in decision.outcomes],
            "contributions": [
                [[f"{c.microbatches:x}", c.carried] for c in outcome.contributions] for outcome in decision.outcomes
            ],
            "key_frames": [f"{bits:x}" for bits in decision.key_frames],
            "codecs": [[pair.forward, pair.backward] for pair in decision.codecs],
            "rate": decision.rate.hex(),
            "update": [number.hex() for number in astuple(decision.update)],
        }
    )


def decode_decision(body: str) -> Decision:
    """The decision of a row. Raises sqlite3.DatabaseError, as SQLite does for other damage that it finds."""
    with of_a_row():
        row = json.loads(body)
        contributions = row.get("contributions") or [[]] * len(row["outcomes"])
        return Decision(
            term=Term(row["term"]),
            step=StepNumber(row["step"]),
            scale=float.fromhex(row["scale"]),
            loss_sum=float.fromhex(row["loss_sum"]),
            tokens=row["tokens"],
            gradient_norm=float.fromhex(row["gradient_norm"]),
            outcomes=tuple(
                StageOutcome(
                    number, digest, tuple(Contribution(int(bits, 16), carried) for bits, carried in of_members)
                )
                for (number, digest), of_members in zip(row["outcomes"], contributions, strict=True)
            ),
            key_frames=tuple(int(bits, 16) for bits in row.get("key_frames", ())),
            codecs=tuple(CodecPair(forward, backward) for forward, backward in row.get("codecs", ())),
            rate=float.fromhex(row.get("rate", "1.0")),
            update=Update(*(float.fromhex(number) for number in row["update"])),
        )


def encode_command(command: Command) -> str:
    return json.dumps(asdict(command))


def decode_command(body: str) -> Command:
    """The command of a row. Raises sqlite3.DatabaseError."""
    with of_a_row():
        return Command(**json.loads(body))


@contextlib.contextmanager
def of_a_row() -> Iterator[None]:
    """Report a row that no record has as SQLite reports a damaged page: it checks no row's content itself."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row is damaged ({error})") from None
