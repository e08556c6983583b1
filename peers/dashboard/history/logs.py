"""Logs: all event logs of some homes as one stream, ordered by time.

In a group of coordinators each may hold copies of the others' logs (`mirrors/`): a line of one log that is in several
files is taken once.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.history.tail import Line, Tail, line_at
from peers.fold.apply import NOISE
from peers.fold.reading import MOST_NAME

MOST_LOGS = 256
COORDINATOR = "coordinator"


class Logs:
    """`take()` returns the new lines. A returned line is taken."""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = list(homes)
        self.tails: dict[str, Tail] = {}
        """By path."""
        self._heard: dict[str, tuple[float, int, str]] = {}
        """By the name of a coordinator's log: time of the last taken line, its number within that time, its file."""

    def look(self) -> bool:
        """Find new logs. True: a known log was replaced, so all must be read anew."""
        for home in self._homes:
            for path in self._files(home):
                if str(path) not in self.tails and len(self.tails) < MOST_LOGS:
                    self.tails[str(path)] = Tail(path, _speaker(path))
        return any(tail.is_replaced() for tail in self.tails.values())

    def take(self, until: float = math.inf) -> Iterator[Line]:
        """New lines of all logs by time, without the noise, up to `until`."""
        tails = list(self.tails.values())
        merged = tails[0].lines() if len(tails) == 1 else heapq.merge(*(tail.lines() for tail in tails), key=_time)
        for line in merged:
            if line.at > until:
                return
            tail = line.tail
            tail.offset = line.end
            tail.nth = tail.nth + 1 if line.at == tail.at else 0
            tail.at = line.at
            if line.kind in NOISE:
                continue
            if line.kind == "ProcessStarted":
                tail.source = _source(line.raw) or tail.source
            if self._is_new(tail):
                yield line

    def _is_new(self, tail: Tail) -> bool:
        """Whether the last line of a coordinator's log was not taken from another file yet."""
        if not tail.source.startswith(COORDINATOR):
            return True
        path = str(tail.path)
        heard = self._heard.get(tail.source)
        if heard is not None and heard[2] != path and (tail.at, tail.nth) <= heard[:2]:
            return False
        self._heard[tail.source] = tail.at, tail.nth, path
        return True

    def progress(self) -> tuple[int, int]:
        """Bytes read, and total bytes."""
        sizes = {path: tail.size for path, tail in self.tails.items()}
        return sum(min(tail.offset, sizes[path]) for path, tail in self.tails.items()), sum(sizes.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "tails": {path: [t.source, t.offset, t.head, t.at, t.nth] for path, t in self.tails.items()},
            "heard": {source: list(heard) for source, heard in self._heard.items()},
        }

    def restore(self, raw: dict[str, Any]) -> None:
        """Continue from there. Raises KeyError, TypeError or ValueError for data that `to_json` did not make."""
        tails = {}
        for path, (source, offset, head, at, nth) in raw["tails"].items():
            tail = Tail(Path(path), str(source))
            tail.offset, tail.head, tail.at, tail.nth = int(offset), str(head), float(at), int(nth)
            tails[path] = tail
        self.tails = tails
        self._heard = {name: (float(at), int(nth), str(path)) for name, (at, nth, path) in raw["heard"].items()}

    def _files(self, home: Path) -> list[Path]:
        """The own log, dated parts of it, those of the process's other seats, and copies of other coordinators'."""
        parts = sorted(home.glob("events-*.jsonl"))
        own = home / "events.jsonl"
        others = [*home.glob("seats/*/events.jsonl"), *home.glob("mirrors/*.jsonl")]
        return parts + ([own] if own.exists() else []) + sorted(others)


def _time(line: Line) -> float:
    return line.at


def _speaker(path: Path) -> str:
    """The writer of a log, by its first line; in a copy without a beginning, by its name."""
    source = _source(line_at(path, 0))
    if source is not None:
        return source
    if path.parent.name == "mirrors" or (path.parent / "decisions.sqlite").exists():
        return f"{COORDINATOR}/{path.stem}"
    return path.parent.name[:MOST_NAME]


def _source(raw: bytes) -> str | None:
    """Of a ProcessStarted: `coordinator/ACTOR`, or the actor of a peer."""
    try:
        record = json.loads(raw)
        if record["kind"] != "ProcessStarted":
            return None
        role, actor = str(record["role"])[:MOST_NAME], str(record["actor"])[:MOST_NAME]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return f"{COORDINATOR}/{actor}" if role == COORDINATOR else actor
