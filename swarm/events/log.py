"""The event log: one append-only log of JSON lines per process. A long log is split into parts (parts.py).

A line is `{"at": unix seconds, "kind": "PeerFenced", …fields}`. Readers skip an incomplete last line, which a process
leaves if it dies while writing.
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
    """When a log starts a new part: before a part exceeds `part_bytes`, and if `daily`, also when a UTC day begins."""

    part_bytes: int
    parts: int | None = None
    """Number of older parts to keep; the others are deleted. None: keep all."""
    daily: bool = False


class EventLog:
    """Writes events to the log, flushed after each event, and passes each written event to the listeners."""

    def __init__(self, path: Path | None, clock: Callable[[], float], rotation: Rotation | None = None) -> None:
        """`path` None: write nothing to disk. `rotation` None: keep one file."""
        self._clock = clock
        self._path = path
        self._rotation = rotation
        self._part_bytes = 0 if rotation is None else rotation.part_bytes
        self._day = ""
        """UTC day of the last event in the current part."""
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
        """Write an event and pass it to the listeners. Raises OSError, naming the log, if it cannot be written.

        The log then ends with the previous event. If a listener raises, its first exception is printed to stderr.
        """
        at = self._clock()
        if isinstance(event, ProcessStarted):
            self._started = event
        if self._file is not None:
            line = _line(event, at)
            self._follow(at)
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

    def _follow(self, at: float) -> None:
        """Begin a new file if somebody, for example logrotate, has renamed or removed the present one: nobody would
        find further events there. If no new file can be made, go on with the present one.
        """
        assert self._file is not None and self._path is not None
        present = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
            if (there.st_dev, there.st_ino) == (present.st_dev, present.st_ino):
                return
        except FileNotFoundError:
            pass
        except OSError:
            return
        try:
            file = self._path.open("ab", buffering=0)
        except OSError:
            return
        self._file.close()
        self._file = file
        if self._started is not None:
            self._begin_part(at, 1 + self._older())

    def _older(self) -> int:
        """The number of the newest older part; 0: there is none."""
        assert self._path is not None
        return max((number_of_part(self._path, part) or 0 for part in parts_of(self._path)), default=0)

    def _begin_part(self, at: float, number: int) -> None:
        """Write the first line of a part, which names its writer. Raises OSError."""
        started = self._started
        assert started is not None
        self._write(_line(LogContinued(started.role, started.actor, started.run, started.version, number), at))

    def _rotate(self, at: float, nbytes: int) -> None:
        """Start a new part if it is time. The part begins with LogContinued, which names its writer. Raises OSError."""
        assert self._file is not None and self._path is not None and self._rotation is not None
        size = os.fstat(self._file.fileno()).st_size
        new_day = self._rotation.daily and _day(at) != self._day
        if size == 0 or not (new_day or size + nbytes > self._part_bytes):
            return
        number = 1 + self._older()
        try:
            self._path.rename(name_of_part(self._path, self._day, number))
        except OSError:  # continue in the same part; try again after part_bytes more
            self._part_bytes = size + self._rotation.part_bytes
            self._day = _day(at)
            return
        try:
            begun = self._path.open("ab", buffering=0)
        except OSError:  # continue in the old part; `_follow` tries again
            return
        self._file.close()
        self._file = begun
        self._part_bytes = self._rotation.part_bytes
        self._begin_part(at, number + 1)
        if self._rotation.parts is not None:
            for part in parts_of(self._path)[: -self._rotation.parts or None]:
                with contextlib.suppress(OSError):
                    part.unlink()

    def _tell(self, listener: EventListener) -> None:
        """Print a listener's first exception. Must be called while the exception is being handled."""
        if listener in self._failed:
            return
        self._failed.append(listener)
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed or broken
            traceback.print_exc()

    def _write(self, line: bytes) -> None:
        """Write a line, usually with one call, so that readers see whole lines, except after a crash."""
        assert self._file is not None
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise OSError(error.errno, f"{error.strerror}: the event log cannot be written", self._file.name) from error


def read_log(path: Path) -> Iterator[tuple[float, Event]]:
    """All events of a log, oldest first, without damaged records, records of other releases and an incomplete last
    line.

    Raises FileNotFoundError if the log has no file.
    """
    for part in whole_log(path) or [path]:
        with part.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    event = from_record(record) if isinstance(record, dict) else None
                    at = 0.0 if event is None else float(record.get("at", 0.0))
                except (ValueError, TypeError, RecursionError):
                    continue
                if event is not None:
                    yield at, event


def mend_torn_tail(path: Path) -> None:
    """Remove an incomplete last line, so that the next record starts on its own line."""
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
    """The UTC day of a Unix time, such as 20261127."""
    return time.strftime("%Y%m%d", time.gmtime(at))
