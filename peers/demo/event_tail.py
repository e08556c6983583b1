"""Reads an event log as another process writes it."""

from __future__ import annotations

import json
from pathlib import Path

from swarm.events import Event, from_record


class EventTail:
    """`read` returns the events appended since the last call. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[tuple[float, Event]]:
        """(unix seconds, event), oldest first. An incomplete line waits for the next call."""
        try:
            file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return []
        with file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        found = []
        for line in whole.splitlines():
            record = json.loads(line)
            if (event := from_record(record)) is not None:
                found.append((float(record["at"]), event))
        return found
