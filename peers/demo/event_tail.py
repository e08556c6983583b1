"""Reads an event log while another process writes it."""

from __future__ import annotations

import json
from pathlib import Path

from swarm.events import Event, LogTail, from_record


class EventTail:
    """The reader of one log. `read` returns the events appended since the last call. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._tail = LogTail(path)

    def read(self) -> list[tuple[float, Event]]:
        """The new events as (unix seconds, event), oldest first. An incomplete line is read in a later call."""
        found = []
        for line in self._tail.lines():
            record = json.loads(line)
            if (event := from_record(record)) is not None:
                found.append((float(record["at"]), event))
        return found
