"""The event log: JSON lines, one append-only log per process, in parts if it would grow too long (parts.py).

A line is `{"at": unix seconds, "kind": "PeerFenced", …fields}`. A torn last line (the process died while writing) is
skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swarm.events.event import Event, from_record, to_record
from swarm.events.parts import name_of_part, number_of_part, parts_of, whole_log
from swarm.events.run import LogContinued, ProcessStarted

EventListener = Callable[[Event, float], None]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a log goes on in a new part: before it has more than `part_bytes`; if `daily`, also with each UTC day."""

    part_bytes: int
    parts: int | None = None
    """Older parts that stay, the others are dropped; None: all stay."""
    daily: bool = False


class EventLog:
    """Append-only JSON lines, flushed per event; listeners see each event as it is written."""

    def __init__(self, path: Path | None, clock: Callable[[], float], rotation: Rotation | None = None) -> None:
        """`rotation` None: it stays one file."""
        self._clock = clock
        self._path = path
        self._rotation = rotation
        self._part_bytes = 0 if rotation is None else rotation.part_bytes
        self._day = ""
        """Of the last event in the part."""
        self._started: ProcessStarted | None = None
        self._file: IO[bytes] | None = None
        self.listeners: list[EventListener] = []
        self._failed: list[EventListener] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            mend_torn_tail(path)
            self._file = path.open("ab", buffering=0)
            self._day = _day(os.fstat(self._file.fileno()).st_mtime)

    def append(self, event: Event) -> None:
        """Raises OSError naming the log when it cannot be written; it then ends with the event before.

        A listener that fails does not end the process: its first failure is printed to stderr.
        """
        at = self._clock()
        if isinstance(event, ProcessStarted):
            self._started = event
        if self._file is not None:
            line = _line(event, at)
            if self._rotation is not None and self._started is not None:
                self._rotate(at, len(line))
                self._day = _day(at)
            self._write(line)
        for listener in self.listeners:
            try:
                listener(event, at)
            except Exception:
                self._tell(listener)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self, at: float, nbytes: int) -> None:
        """Go on in a new part, if it is time. It begins with the name of its writer. Raises OSError."""
        assert self._file is not None and self._path is not None and self._rotation is not None
        size = os.fstat(self._file.fileno()).st_size
        new_day = self._rotation.daily and _day(at) != self._day
        if size == 0 or not (new_day or size + nbytes > self._part_bytes):
            return
        older = parts_of(self._path)
        number = 1 + max((number_of_part(self._path, part) or 0 for part in older), default=0)
        try:
            self._path.rename(name_of_part(self._path, self._day, number))
        except OSError:  # the log grows on in one part; it is tried again later
            self._part_bytes = size + self._rotation.part_bytes
            self._day = _day(at)
            return
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._part_bytes = self._rotation.part_bytes
        started = self._started
        assert started is not None
        self._write(_line(LogContinued(started.role, started.actor, started.run, started.version, number + 1), at))
        if self._rotation.parts is not None:
            for part in parts_of(self._path)[: -self._rotation.parts or None]:
                with contextlib.suppress(OSError):
                    part.unlink()

    def _tell(self, listener: EventListener) -> None:
        """Print a listener's exception. Called while the exception is handled."""
        if listener in self._failed:
            return
        self._failed.append(listener)
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, or broken as well
            traceback.print_exc()

    def _write(self, line: bytes) -> None:
        """Write a line, usually with one call: another reader sees whole lines, except after a crash."""
        assert self._file is not None
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise OSError(error.errno, f"{error.strerror}: the event log cannot be written", self._file.name) from error


def read_log(path: Path) -> Iterator[tuple[float, Event]]:
    """All events of a log, oldest first; records of other releases and a torn last line are skipped.

    Raises FileNotFoundError if it has no part.
    """
    for part in whole_log(path) or [path]:
        with part.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and (event := from_record(record)) is not None:
                    yield float(record.get("at", 0.0)), event


def mend_torn_tail(path: Path) -> None:
    """Cut an unfinished last line, so that the next record starts on its own line."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        position = size
        while position > 0:
            start = max(0, position - 65_536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                if start + newline + 1 < size:
                    file.truncate(start + newline + 1)
                return
            position = start
        file.truncate(0)


def _line(event: Event, at: float) -> bytes:
    return json.dumps(to_record(event, at), separators=(",", ":")).encode() + b"\n"


def _day(at: float) -> str:
    """The UTC day of Unix seconds, as 20261127."""
    return time.strftime("%Y%m%d", time.gmtime(at))
