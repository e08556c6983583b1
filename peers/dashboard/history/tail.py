"""Follows one event log as it grows. Only whole lines are read; an incomplete last line is read once it is complete."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

CHUNK_BYTES = 1 << 20
MOST_KIND = 80
"""Maximum length of an event's name."""
MOST_LINE = 4 << 20
"""Maximum number of bytes of a line; longer lines are skipped."""
_OLD_PART = re.compile(r"events-[0-9]{8}-[0-9]{6,12}\.jsonl")
HEAD_BYTES = 256
"""Number of bytes at the beginning by which a log is recognised."""


class Line(NamedTuple):
    at: float
    kind: str
    tail: Tail
    offset: int
    """Offset of the line's first byte in the log."""
    end: int
    raw: bytes
    skipped: int
    """Number of unreadable lines directly before this one."""


class Tail:
    """The reader of one log. `offset`: the lines before it are taken; `Logs` advances it. `source`: the writer of the
    log.
    """

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source
        self.log = log_of(path)
        """The path of the log to which the file belongs."""
        self.offset = 0
        self.head = ""
        """A hash of the log's beginning, once the log is long enough."""
        self.at = -1e18
        self.nth = 0
        """Time of the last line taken, and the number of earlier lines with the same time."""
        self.unreadable = 0
        """Number of unreadable lines before `offset`."""
        self.unreadable_after = 0
        """Number of unreadable lines after the last readable one, which are read again with the next one."""
        self.is_finished = False
        """True if it is an older part of a log, and all its lines are taken."""

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def is_replaced(self) -> bool:
        """True if the log was replaced or truncated since it was read."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False  # the file may come back; its lines remain valid
        if size < self.offset:
            return True
        if not self.head:
            self.head = _head(self.path)
            return False
        return _head(self.path) != self.head

    def moves_to(self, path: Path) -> bool:
        """True if the file that was read is now at `path`. Reading then continues there."""
        try:
            size = path.stat().st_size
        except OSError:
            return False
        if not self.head or size < self.offset or _head(path) != self.head:
            return False
        self.path = path
        return True

    def lines(self) -> Iterator[Line]:
        """The lines from `offset` to the current end."""
        try:
            file = self.path.open("rb", buffering=0)
        except OSError:
            return
        with file:
            if self.head and _hash_of(file.read(HEAD_BYTES)) != self.head:
                return  # the next part has this name now: `look` finds the new path of this one
            position, rest, skipped = self.offset, b"", 0
            self.unreadable_after = 0
            file.seek(position)
            while True:
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    self.unreadable_after = skipped
                    return
                whole, newline, after = chunk.rpartition(b"\n")
                if not newline:
                    rest += chunk
                    if len(rest) > MOST_LINE:
                        position, rest, skipped = self._skip(file, position + len(rest)), b"", skipped + 1
                        file.seek(position)
                    continue
                for raw in (rest + whole).split(b"\n"):
                    end = position + len(raw) + 1
                    found = header(raw)
                    if found is not None:
                        yield Line(*found, self, position, end, raw, skipped)
                        skipped = 0
                    elif raw.strip():
                        skipped += 1
                    position = end
                rest = after

    def _skip(self, file: object, position: int) -> int:
        """The position after a line that is too long; the end of the file if the line does not end."""
        with self.path.open("rb") as again:
            again.seek(position)
            while chunk := again.read(CHUNK_BYTES):
                found = chunk.find(b"\n")
                if found >= 0:
                    return position + found + 1
                position += len(chunk)
        return position


def is_old_part(path: Path) -> bool:
    return _OLD_PART.fullmatch(path.name) is not None


def log_of(path: Path) -> str:
    """The path of the log to which a file belongs: the file itself, unless it is an older part."""
    return str(path.with_name("events.jsonl") if is_old_part(path) else path)


def header(raw: bytes) -> tuple[float, str] | None:
    """Time and kind of a line. The rest is not parsed if the line begins in this program's format. None: it is no
    event.
    """
    if raw.startswith(b'{"at":'):
        comma = raw.find(b',"kind":"', 6, 64)
        quote = raw.find(b'"', comma + 9, comma + 80) if comma > 0 else -1
        if quote > 0:
            try:
                at, kind = float(raw[6:comma]), raw[comma + 9 : quote].decode("ascii")
            except ValueError:
                return None
            return (at, kind) if abs(at) < 1e18 else None
    try:
        record = json.loads(raw)
        at, kind = float(record["at"]), record["kind"]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    if not isinstance(kind, str) or not kind.isascii() or len(kind) > MOST_KIND:
        return None
    return (at, kind) if abs(at) < 1e18 else None


def record_of(raw: bytes, kind: str) -> dict[str, object] | None:
    """The record of a line, without the spans of a `PeerWorked`: its largest part, only read for drawing."""
    if kind == "PeerWorked" and (start := raw.find(b',"spans":[[')) > 0 and (end := raw.find(b"]]", start)) > 0:
        cut = _parsed(raw[:start] + raw[end + 2 :])
        if cut is not None:
            return cut
    return _parsed(raw)


def line_at(path: Path, offset: int) -> bytes:
    """The line that begins at an offset. Empty: it no longer exists."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.readline(MOST_LINE).rstrip(b"\n")
    except OSError:
        return b""


def _parsed(raw: bytes) -> dict[str, object] | None:
    """Parse JSON. Lone surrogates, which JSON can contain and UTF-8 cannot, become question marks."""
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError:  # five times as fast, but it refuses NaN and lone surrogates
        record = _parsed_slowly(raw)
    return record if type(record) is dict else None


def _parsed_slowly(raw: bytes) -> object:
    try:
        record = json.loads(raw)
        return json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            first = file.read(HEAD_BYTES)
    except OSError:
        return ""
    return _hash_of(first)


def _hash_of(first: bytes) -> str:
    """A hash of the first bytes; empty while the log is shorter."""
    return hashlib.sha256(first).hexdigest()[:16] if len(first) == HEAD_BYTES else ""
