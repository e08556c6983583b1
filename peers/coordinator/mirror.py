"""Every coordinator of a group keeps a copy of the others' event logs (a mirror), so that each can show the whole run.

Once a heartbeat, each coordinator asks every other coordinator for the part of its log that the copy lacks. A chunk is
sent only if there is new content. The first line identifies a log. If the first line or the end of the copied part
differs (because a home was restored from an older copy), the copy is set aside and a new one is begun. Copies contain
whole lines only.

A copy that cannot go on (`Copy.why_stopped`) is logged once for each reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarm.events import Event, LogCopyStopped, WholeLog, mend_torn_tail
from swarm.events.wording import amount
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_LOG_BYTES, LogChunk, LogWant, Message

MAX_COPY = 64_000_000_000
"""Largest size of a copy in bytes; then no more is requested. 10,000 peers write as much in about ten days."""
LEAST_FREE = 1_000_000_000
"""While less than this many bytes of the disk are free, no more is requested: the process's own files need the rest."""
MAX_ASIDE = 8
"""Largest number of copies of one coordinator's earlier logs; then no more is requested."""
MAX_LINE = 8 << 20
_FIRST = 4096
"""Maximum length of a first line, in bytes."""
_BEFORE = 256


class Mirror:
    """The mirror of one coordinator. `log`: its own log. `folder`: contains the copies, named after the ids of their
    coordinators. `report` logs an event.
    """

    def __init__(
        self,
        log: Path,
        folder: Path,
        others: Sequence[Actor],
        send: Callable[[Actor, Message], None],
        report: Callable[[Event], None],
        reachable: Callable[[Actor], bool] = lambda actor: True,
    ) -> None:
        self._log = log
        self._copies = {other: Copy(folder / f"{other.peer}.jsonl") for other in others}
        self._send = send
        self._report = report
        self._reported: set[tuple[Actor, str]] = set()
        self._reachable = reachable

    async def run(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.ask()

    def ask(self) -> None:
        """Ask each reachable coordinator for the part of its log that the copy lacks."""
        for other, copy in self._copies.items():
            with suppress(OSError):  # an unreadable copy is no reason to stop
                if why := copy.why_stopped():
                    self._report_once(other, why)
                elif self._reachable(other):
                    self._send(other, copy.want())

    def heard(self, sender: Actor, message: LogWant | LogChunk) -> None:
        """Handle a message. Messages of actors outside the group are ignored."""
        copy = self._copies.get(sender)
        if copy is None:
            return
        try:
            if isinstance(message, LogChunk):
                copy.take(message)
            elif (chunk := chunk_of(self._log, message)) is not None:
                self._send(sender, chunk)
        except OSError:
            pass  # the disk is full, or the log is gone; the chunk is requested again

    def _report_once(self, other: Actor, why: str) -> None:
        if (other, why) not in self._reported:
            self._reported.add((other, why))
            self._report(LogCopyStopped(str(other), why))


@dataclass
class Copy:
    """The copy of another coordinator's log."""

    path: Path
    _restarted: bool = False
    """True if the other coordinator has begun its log anew too often."""
    _begun: bytes = b""
    """The beginning of a line that is longer than one chunk."""

    def __post_init__(self) -> None:
        with suppress(OSError):
            mend_torn_tail(self.path)

    def why_stopped(self) -> str:
        """The reason why nothing more may be requested; empty if there is none. Raises OSError."""
        if self._restarted:
            return f"the log has begun anew more than {MAX_ASIDE} times"
        if self._size > MAX_COPY:
            return f"it has reached {amount(MAX_COPY)}"
        there = next(folder for folder in self.path.parents if folder.exists())
        if shutil.disk_usage(there).free < LEAST_FREE:
            return f"less than {amount(LEAST_FREE)} of the disk is free"
        return ""

    def want(self) -> LogWant:
        size = self._size
        return LogWant(name_of(self.path) or "", size + len(self._begun), _before(self.path, size, self._begun))

    def take(self, chunk: LogChunk) -> None:
        """Append a chunk. Raises OSError."""
        there = self._size + len(self._begun)
        if chunk.offset != there:
            if chunk.offset or not self._set_aside():
                return  # it answers an earlier request
        elif there and not self._begun and chunk.log != name_of(self.path):
            return
        whole, newline, begun = (self._begun + chunk.lines).rpartition(b"\n")
        self._begun = begun if len(begun) <= MAX_LINE else b""
        if newline:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(whole + newline)

    @property
    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _set_aside(self) -> bool:
        """Set this copy aside and begin a new one. Return False if too many copies are set aside already."""
        self._begun = b""
        if not self.path.exists():
            return True
        for number in range(1, MAX_ASIDE + 1):
            aside = self.path.with_name(f"{self.path.stem}-{number}.jsonl")
            if not aside.exists():
                self.path.rename(aside)
                return True
        self._restarted = True
        return False


def chunk_of(log: Path, want: LogWant, most: int = MAX_LOG_BYTES) -> LogChunk | None:
    """The requested part of a log: whole lines, as many as fit into `most` bytes. None: there is nothing new.

    Raises OSError.
    """
    name = name_of(log)
    if name is None:
        return None
    same = want.log == name and want.before == _before(log, want.offset, b"")
    offset = want.offset if same else 0
    lines = WholeLog(log).read(offset, most)
    whole = lines[: lines.rfind(b"\n") + 1]
    if not whole and len(lines) == most:
        whole = lines  # only a part of a longer line
    return LogChunk(name, offset, whole) if whole else None


def name_of(log: Path) -> str | None:
    """A hash of the first line; None: there is no line yet."""
    first = WholeLog(log).first_line(_FIRST)
    return hashlib.sha256(first).hexdigest() if first.endswith(b"\n") or len(first) == _FIRST else None


def _before(log: Path, size: int, begun: bytes) -> str:
    """A hash of the last bytes in the first `size` bytes of a log, and of the incomplete line after them."""
    tail = b""
    if size:
        start = max(0, size - _BEFORE)
        tail = WholeLog(log).read(start, size - start)
    return hashlib.sha256((tail + begun)[-_BEFORE:]).hexdigest()
