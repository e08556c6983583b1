"""The parts of an event log. `events.jsonl` is the newest part; older parts have names like
`events-20261127-000012.jsonl` in the same folder.

The date is the UTC day of the part's last event; the number counts the parts of the log. All parts together form one
sequence of lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_PART = re.compile(r"-([0-9]{8})-([0-9]{6,12})\.jsonl")
_CHUNK_BYTES = 1 << 16
_FIRST_BYTES = 4096


def number_of_part(log: Path, path: Path) -> int | None:
    """The number of the part `path` if it is an older part of `log`, else None."""
    match = _PART.fullmatch(path.name.removeprefix(log.stem)) if path.name.startswith(log.stem) else None
    return None if match is None else int(match[2])


def parts_of(log: Path) -> list[Path]:
    """The older parts of a log, oldest first."""
    numbered = ((number_of_part(log, path), path) for path in log.parent.glob(f"{log.stem}-*.jsonl"))
    return [path for _, path in sorted((number, path) for number, path in numbered if number is not None)]


def whole_log(log: Path) -> list[Path]:
    """All existing parts of a log, oldest first."""
    return [*parts_of(log), *([log] if log.exists() else [])]


def name_of_part(log: Path, day: str, number: int) -> Path:
    """The path of an older part. `day`: such as 20261127."""
    return log.with_name(f"{log.stem}-{day}-{number:06d}.jsonl")


class LogTail:
    """Reads the new lines of a log over its parts. The log need not exist yet; no file stays open between calls."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._first = b""
        """First line of the part that is being read. It identifies a part after renaming; an inode may be reused."""
        self._position = 0
        self._read_at: tuple[int, int, int] | None = None
        """Inode, size and time of change of the log when all of it had been read."""

    def lines(self) -> Iterator[bytes]:
        """The lines added since the last call, each with its newline. An incomplete line is left for the next call."""
        now = _state_of(self._log)
        if now is not None and now == self._read_at:
            return  # most calls find nothing new: this costs a tenth of opening and reading the file
        while True:
            if self._first and _first_of(self._log) == self._first:
                yield from self._lines_of(self._log)
                self._read_at = now
                return
            parts = [(part, _first_of(part)) for part in whole_log(self._log)]
            at = next((n for n, (_, first) in enumerate(parts) if first and first == self._first), None)
            if at is None:  # nothing was read yet, or the part that was read is deleted, so all parts are newer
                at = -1
            else:
                yield from self._lines_of(parts[at][0])
            if at + 1 >= len(parts) or not parts[at + 1][1]:
                return
            self._first, self._position = parts[at + 1][1], 0

    def _lines_of(self, part: Path) -> Iterator[bytes]:
        size = _CHUNK_BYTES
        try:
            file = part.open("rb", buffering=0)
        except FileNotFoundError:
            return  # the part has just been renamed
        with file:
            if _first_line(file) != self._first:
                return  # the part has just been renamed
            while True:
                file.seek(self._position)
                chunk = file.read(size)
                whole, newline, _ = chunk.rpartition(b"\n")
                if newline:
                    size = _CHUNK_BYTES
                    for line in whole.split(newline):
                        self._position += len(line) + 1
                        yield line + newline
                elif len(chunk) == size:
                    size *= 2  # the line is longer than `size`
                else:
                    return


class WholeLog:
    """The bytes of a log over all its parts, as they are when this object is created."""

    def __init__(self, log: Path) -> None:
        """Read the sizes of all parts. Raises OSError."""
        self._parts = [(path, path.stat()) for path in whole_log(log)]
        self.size = sum(stat.st_size for _, stat in self._parts)

    def read(self, offset: int, most: int) -> bytes:
        """Read at most `most` bytes from `offset` on. Raises OSError, also if a part was renamed meanwhile."""
        found, begin = bytearray(), 0
        for path, stat in self._parts:
            start = max(offset + len(found) - begin, 0)
            if start < stat.st_size and len(found) < most:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_ino != stat.st_ino:
                        raise FileNotFoundError(f"the log part {path} was replaced by a different one")
                    file.seek(start)
                    found += file.read(min(most - len(found), stat.st_size - start))
            begin += stat.st_size
        return bytes(found)

    def first_line(self, most: int) -> bytes:
        """The first line of the log, cut to `most` bytes; with its newline if it is complete. Raises OSError."""
        first, newline, _ = self.read(0, most).partition(b"\n")
        return first + newline


def _state_of(log: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of change; None if there is no file."""
    try:
        status = log.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _first_of(part: Path) -> bytes:
    try:
        with part.open("rb", buffering=0) as file:
            return _first_line(file)
    except FileNotFoundError:
        return b""


def _first_line(file: IO[bytes]) -> bytes:
    """The first line of a newly opened file, at most _FIRST_BYTES; empty while the line is incomplete."""
    begin = file.read(_FIRST_BYTES)
    first, newline, _ = begin.partition(b"\n")
    return first + newline if newline or len(begin) == _FIRST_BYTES else b""
