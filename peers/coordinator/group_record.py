"""A group member's part of the decision record: its vote and the common log, in the same SQLite file.

Committed entries are also written into the tables of terms, decisions, rollbacks and commands, as a single coordinator
would write them. So a reader of the record need not know whether a group wrote it.
"""

from __future__ import annotations

import json

from peers.coordinator.record import (
    DecisionRecord,
    decode_command,
    decode_decision,
    encode_command,
    encode_decision,
    of_a_row,
    refusing,
)
from swarm.protocol.ids import Term
from swarm.protocol.messages import Append, ArchivedEntry, CommandEntry, DecisionEntry, Entry, TermEntry
from swarm.protocol.raft.io import SendEntries, WriteGroup
from swarm.protocol.raft.log import Standing, Stored
from swarm.protocol.raft.raft import BATCH

MAX_BATCH_BYTES = 256 << 10
"""Maximum size of the entries in one message, in bytes as stored: well below the limit of a control message."""


class GroupRecord(DecisionRecord):
    """A member's vote and log on disk. Used from one thread at a time."""

    def stored(self) -> Stored:
        """Return the stored state that a `GroupMember` starts from. Raises RecordError."""
        with refusing(self._path):
            ballot, vote, committed = self._db.execute("SELECT ballot, vote, committed FROM ballot").fetchone()
            standing = Standing()
            starts: list[tuple[int, int]] = []
            tail: list[Entry] = []
            for place, *row in self._db.execute("SELECT place, ballot, kind, body FROM log ORDER BY place"):
                entry = _entry(*row)
                if place > committed:
                    tail.append(entry)
                    continue
                standing = standing.after(entry)
                if not starts or starts[-1][1] != entry.ballot:
                    starts.append((place, entry.ballot))
        return Stored(ballot, vote, committed, standing, tuple(starts), tuple(tail))

    def write_group(self, order: WriteGroup) -> int | None:
        """Write to disk, then return the version to which an entry rolled back; None if no entry is a rollback.

        Raises RecordError if the disk is full or fails.
        """
        back: int | None = None
        with refusing(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            (before,) = self._db.execute("SELECT committed FROM ballot").fetchone()
            self._db.execute("DELETE FROM log WHERE place >= ?", (order.first,))
            rows = [(order.first + i, entry.ballot, *_row(entry)) for i, entry in enumerate(order.entries)]
            self._db.executemany("INSERT INTO log(place, ballot, kind, body) VALUES (?, ?, ?, ?)", rows)
            places = (before, order.committed)
            settled = self._db.execute(
                "SELECT ballot, kind, body FROM log WHERE place > ? AND place <= ? ORDER BY place", places
            )
            for row in settled.fetchall():
                entry = _entry(*row)
                if isinstance(entry, TermEntry):
                    self._set_term(entry.term, entry.rollback_to)
                    if entry.rollback_to is not None:
                        back = entry.rollback_to if back is None else min(back, entry.rollback_to)
                elif isinstance(entry, DecisionEntry):
                    self._add(entry.decision)
                elif isinstance(entry, CommandEntry):
                    self._add_command(entry.command)
            vote = (order.ballot, order.vote, order.committed)
            self._db.execute("UPDATE ballot SET ballot = ?, vote = ?, committed = ?", vote)
            self._db.execute("COMMIT")
        return back

    def append(self, order: SendEntries) -> Append:
        """The message with the requested entries, as many as fit. Raises RecordError."""
        before, ballot, size = order.first - 1, 0, 0
        entries: list[Entry] = []
        with refusing(self._path):
            if before and (row := self._db.execute("SELECT ballot FROM log WHERE place = ?", (before,)).fetchone()):
                ballot = int(row[0])
            query = "SELECT ballot, kind, body FROM log WHERE place >= ? ORDER BY place LIMIT ?"
            for row in self._db.execute(query, (order.first, BATCH)).fetchall():
                size += len(row[2])
                if entries and size > MAX_BATCH_BYTES:
                    break
                entries.append(_entry(*row))
        return Append(order.ballot, before, ballot, tuple(entries), order.committed, order.offer)


def _row(entry: Entry) -> tuple[str, str]:
    match entry:
        case TermEntry():
            return "term", json.dumps([entry.term, entry.rollback_to])
        case DecisionEntry():
            return "decision", encode_decision(entry.decision)
        case ArchivedEntry():
            return "archived", json.dumps([entry.version, entry.term, entry.digests])
        case CommandEntry():
            return "command", encode_command(entry.command)


def _entry(ballot: int, kind: str, body: str) -> Entry:
    if kind == "decision":
        return DecisionEntry(ballot, decode_decision(body))
    if kind == "command":
        return CommandEntry(ballot, decode_command(body))
    with of_a_row():
        fields = json.loads(body)
        if kind == "term":
            return TermEntry(ballot, Term(fields[0]), fields[1])
        return ArchivedEntry(ballot, fields[0], Term(fields[1]), tuple(fields[2]))
