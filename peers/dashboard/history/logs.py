"""All event logs of some homes as one stream, ordered by time.

In a group, each coordinator may hold copies of the others' logs (`mirrors/`). A line that is in several files is taken
once. A log may consist of several parts; the newest part has the log's name (swarm/events/parts.py). The lines of one
log keep their order: times that jump or decrease are changed (clock.py).
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.history.clock import LOOK_AHEAD, Clock, Timed, monotone
from peers.dashboard.history.tail import Line, Tail, is_old_part, line_at, log_of
from peers.fold.apply import NOISE
from peers.fold.reading import MOST_NAME
from swarm.events import parts_of

MOST_LOGS = 4096
"""Maximum number of logs, including their parts."""
COORDINATOR = "coordinator"
_NAMES_WRITER = ("ProcessStarted", "LogContinued")


class Logs:
    """The logs of some homes. `take()` returns the new lines. A line counts as taken once it is returned."""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = list(homes)
        self.tails: dict[str, Tail] = {}
        """The tails of the logs, by path."""
        self._renamed: list[tuple[str, str]] = []
        self._heard: dict[str, tuple[float, int, str]] = {}
        """For the name of each coordinator's log: the time of the last line taken, its number among the lines of that
        time, and its log.
        """
        self.is_misread = False
        """True if a time that was taken as it is has turned out to be ahead: the logs must be read again."""
        self._clocks: dict[str, Clock] = {}
        """For each log, its clock after the last line taken."""
        self._jumps: dict[str, tuple[int, int]] = {}
        """For each log, the numbers of the last line after a gap, and of the line at which the clock was then set back;
        0: it was not.
        """

    def look(self) -> bool:
        """Find new logs and parts. Return True if a known log was replaced, so that all logs must be read again."""
        for home in self._homes:
            for log in _logs_of(home):
                older = parts_of(log)
                self._follow(log, older)
                for path in (*older, log):
                    if str(path) not in self.tails and len(self.tails) < MOST_LOGS and path.exists():
                        self.tails[str(path)] = Tail(path, _speaker(path))
        return any(tail.is_replaced() for tail in self.tails.values() if not tail.is_finished)

    def have_changed(self) -> bool:
        """Look. True if there is a new log or a new part, or if a known log was replaced."""
        known = set(self.tails)
        return self.look() or known != set(self.tails)

    def take_renamed(self) -> list[tuple[str, str]]:
        """Logs that have become parts since the last call: (old path, new path)."""
        renamed, self._renamed = self._renamed, []
        return renamed

    def _follow(self, log: Path, older: Sequence[Path]) -> None:
        """If the file read as the newest part now has its dated name, continue reading there."""
        tail = self.tails.get(str(log))
        if tail is None or not tail.is_replaced():
            return
        for part in reversed(older):
            if str(part) not in self.tails and tail.moves_to(part):
                del self.tails[str(log)]
                self.tails[str(part)] = tail
                self._renamed.append((str(log), str(part)))
                return

    def take(self, until: float = math.inf) -> Iterator[Line]:
        """New lines of all logs, ordered by time, up to `until`, without the kinds in NOISE."""
        for tail in self.tails.values():
            tail.is_finished = is_old_part(tail.path) and tail.offset >= tail.size
        parts: dict[str, list[Tail]] = {}
        for tail in self.tails.values():
            if not tail.is_finished:
                parts.setdefault(tail.log, []).append(tail)
        in_order = [monotone(_lines_in_order(tails), self._clocks.get(log)) for log, tails in parts.items()]
        for timed in heapq.merge(*in_order, key=_time):
            line = timed.line
            if line.at > until:
                return
            tail = line.tail
            self._keep_clock(timed)
            tail.offset = line.end
            tail.unreadable += line.skipped
            tail.nth = tail.nth + 1 if line.at == tail.at else 0
            tail.at = line.at
            if line.kind in NOISE:
                continue
            if line.kind in _NAMES_WRITER:
                tail.source = _source(line.raw) or tail.source
            if self._is_new(tail):
                yield line

    def _keep_clock(self, timed: Timed) -> None:
        log = timed.line.tail.log
        before = self._clocks.get(log)
        number = 1 if before is None else before.number + 1
        self._clocks[log] = Clock(timed.line.at, timed.shift, number)
        if timed.is_gap:
            self._jumps[log] = number, 0
        elif timed.shift and log in self._jumps:
            jump, back = self._jumps[log]
            if not back:
                self._jumps[log] = jump, (back := number)
            ahead, since = back - jump, number - back + 1
            self.is_misread = self.is_misread or (since > ahead and ahead + since <= LOOK_AHEAD)
        elif log in self._jumps and self._jumps[log][1]:
            del self._jumps[log]

    def _is_new(self, tail: Tail) -> bool:
        """True if the last line of a coordinator's log was not yet taken from a copy of that log."""
        if not tail.source.startswith(COORDINATOR):
            return True
        log = tail.log
        heard = self._heard.get(tail.source)
        if heard is not None and heard[2] != log and (tail.at, tail.nth) <= heard[:2]:
            return False
        self._heard[tail.source] = tail.at, tail.nth, log
        return True

    def progress(self) -> tuple[int, int]:
        """Number of bytes read, and total number of bytes."""
        sizes = {path: tail.size for path, tail in self.tails.items()}
        return sum(min(tail.offset, sizes[path]) for path, tail in self.tails.items()), sum(sizes.values())

    def unreadable(self) -> tuple[int, list[str]]:
        """Number of lines that could not be read, and the files with such lines, by their paths in their homes."""
        found = {path: tail.unreadable + tail.unreadable_after for path, tail in self.tails.items()}
        paths = [Path(path) for path, count in found.items() if count]
        inside = [next((path.relative_to(h) for h in self._homes if path.is_relative_to(h)), path) for path in paths]
        return sum(found.values()), list(dict.fromkeys(map(str, inside)))

    def to_json(self) -> dict[str, Any]:
        return {
            "tails": {path: [t.source, t.offset, t.head, t.at, t.nth, t.unreadable] for path, t in self.tails.items()},
            "heard": {source: list(heard) for source, heard in self._heard.items()},
            "clocks": {log: list(clock) for log, clock in self._clocks.items()},
        }

    def restore(self, raw: dict[str, Any]) -> None:
        """Restore the positions. Raises KeyError, TypeError or ValueError for data that `to_json` did not make."""
        tails = {}
        for path, (source, offset, head, at, nth, unreadable) in raw["tails"].items():
            tail = Tail(Path(path), str(source))
            tail.unreadable = int(unreadable)
            tail.offset, tail.head, tail.at, tail.nth = int(offset), str(head), float(at), int(nth)
            tails[path] = tail
        self.tails = tails
        self._heard = {
            name: (float(at), int(nth), log_of(Path(path))) for name, (at, nth, path) in raw["heard"].items()
        }
        self._clocks = {
            str(log): Clock(float(at), float(shift), int(number)) for log, (at, shift, number) in raw["clocks"].items()
        }


def _logs_of(home: Path) -> list[Path]:
    """The home's own log, those of the process's other seats, and the copies of other coordinators' logs."""
    seats = (home / "seats").glob("*")
    return [
        home / "events.jsonl",
        *sorted(seat / "events.jsonl" for seat in seats),
        *sorted(home.glob("mirrors/*.jsonl")),
    ]


def _lines_in_order(parts: list[Tail]) -> Iterator[Line]:
    """The lines of a log. `parts`: the older parts come first."""
    for tail in parts:
        yield from tail.lines()


def _time(timed: Timed) -> float:
    return timed.line.at


def _speaker(path: Path) -> str:
    """The writer of a log, by its first line; for a copy whose beginning is missing, by its name."""
    source = _source(line_at(path, 0))
    if source is not None:
        return source
    if path.parent.name == "mirrors" or (path.parent / "decisions.sqlite").exists():
        return f"{COORDINATOR}/{path.stem}"
    return path.parent.name[:MOST_NAME]


def _source(raw: bytes) -> str | None:
    """The writer that a first line names: `coordinator/ACTOR`, or the actor of a peer. None: it names no writer."""
    try:
        record = json.loads(raw)
        if record["kind"] not in _NAMES_WRITER:
            return None
        role, actor = str(record["role"])[:MOST_NAME], str(record["actor"])[:MOST_NAME]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return f"{COORDINATOR}/{actor}" if role == COORDINATOR else actor
