"""Parts of an event log. `events.jsonl` is the newest; older ones lie beside it, as `events-20261127-000012.jsonl`.

The date is that of a part's last event, in UTC; the number counts the parts of the log. All parts together are one
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
    """The number of an older part of `log`; None: it is none."""
    match = _PART.fullmatch(path.name.removeprefix(log.stem)) if path.name.startswith(log.stem) else None
    return None if match is None else int(match[2])


def parts_of(log: Path) -> list[Path]:
    """The older parts of a log, the oldest first."""
    numbered = ((number_of_part(log, path), path) for path in log.parent.glob(f"{log.stem}-*.jsonl"))
    return [path for _, path in sorted((number, path) for number, path in numbered if number is not None)]


def whole_log(log: Path) -> list[Path]:
    """All parts of a log that are there, the oldest first."""
    return [*parts_of(log), *([log] if log.exists() else [])]


def name_of_part(log: Path, day: str, number: int) -> Path:
    """`day`: as 20261127."""
    return log.with_name(f"{log.stem}-{day}-{number:06d}.jsonl")


class LogTail:
    """Follows a log over its parts. It need not exist yet, and no file stays open between two calls."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._first = b""
        """The first line of the part that is read: a part keeps it with its dated name, and inodes are used again."""
        self._position = 0

    def lines(self) -> Iterator[bytes]:
        """The whole lines that were added since, each with its end. An incomplete one waits for the next call."""
        while True:
            if self._first and _first_of(self._log) == self._first:
                yield from self._lines_of(self._log)
                return
            parts = [(part, _first_of(part)) for part in whole_log(self._log)]
            at = next((n for n, (_, first) in enumerate(parts) if first and first == self._first), None)
            if at is None:  # nothing was read yet, or what was read is dropped, so that all are newer
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
            return  # it has got another name just now
        with file:
            if _first_line(file) != self._first:
                return  # likewise
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
                    size *= 2  # a line longer than that
                else:
                    return


class WholeLog:
    """The bytes of a log over all its parts, as it stands when this is made."""

    def __init__(self, log: Path) -> None:
        """Raises OSError."""
        self._parts = [(path, path.stat()) for path in whole_log(log)]
        self.size = sum(stat.st_size for _, stat in self._parts)

    def read(self, offset: int, most: int) -> bytes:
        """At most so many bytes from there. Raises OSError, also when a part has got another name since."""
        found, begin = bytearray(), 0
        for path, stat in self._parts:
            start = max(offset + len(found) - begin, 0)
            if start < stat.st_size and len(found) < most:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_ino != stat.st_ino:
                        raise FileNotFoundError(f"{path} is another part now")
                    file.seek(start)
                    found += file.read(min(most - len(found), stat.st_size - start))
            begin += stat.st_size
        return bytes(found)

    def first_line(self, most: int) -> bytes:
        """As much of it as fits into `most` bytes, with its end if it is whole. Raises OSError."""
        first, newline, _ = self.read(0, most).partition(b"\n")
        return first + newline


def _first_of(part: Path) -> bytes:
    try:
        with part.open("rb", buffering=0) as file:
            return _first_line(file)
    except FileNotFoundError:
        return b""


def _first_line(file: IO[bytes]) -> bytes:
    """Of a file that was just opened, at most _FIRST_BYTES of it; empty as long as it is torn."""
    begin = file.read(_FIRST_BYTES)
    first, newline, _ = begin.partition(b"\n")
    return first + newline if newline or len(begin) == _FIRST_BYTES else b""
