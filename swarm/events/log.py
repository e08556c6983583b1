"""The event log: JSON lines, one append-only file per process.

A line is `{"at": unix seconds, "kind": "PeerFenced", …fields}`. A torn last line (the process died while writing) is
skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from swarm.events.event import Event, from_record, to_record

EventListener = Callable[[Event, float], None]


class EventLog:
    """Append-only JSON lines, flushed per event; listeners see each event as it is written."""

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file: IO[bytes] | None = None
        self.listeners: list[EventListener] = []
        self._failed: list[EventListener] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            mend_torn_tail(path)
            self._file = path.open("ab", buffering=0)

    def append(self, event: Event) -> None:
        """Raises OSError naming the log when it cannot be written; it then ends with the event before.

        A listener that fails does not end the process: its first failure is printed to stderr.
        """
        at = self._clock()
        if self._file is not None:
            self._write(json.dumps(to_record(event, at), separators=(",", ":")).encode() + b"\n")
        for listener in self.listeners:
            try:
                listener(event, at)
            except Exception:
                self._tell(listener)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

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
    """All events of a log, oldest first; records of other releases and a torn last line are skipped."""
    with path.open("rb") as file:
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
