"""The mirror: in a group every coordinator keeps a copy of the others' event logs, so that each can tell the whole run.

Each asks each other for what its log holds beyond the copy, once a heartbeat; a chunk comes only if there is something.
A log is named by its first line. Where that is another one, or what is in front is not the same any more (the home was
restored from an older copy), the copy is set aside and a new one begun. Copies hold whole lines alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.events import mend_torn_tail
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_LOG_BYTES, LogChunk, LogWant, Message

MAX_COPY = 2 << 30
"""Bytes of a copy; then no more is asked for."""
MAX_ASIDE = 8
"""Copies of one coordinator's earlier logs; then no more is asked for."""
MAX_LINE = 8 << 20
_FIRST = 4096
"""A first line is no longer."""
_BEFORE = 256


class Mirror:
    """Of one coordinator. `log`: its own; `folder`: of the copies, each named after its coordinator's peer id."""

    def __init__(
        self,
        log: Path,
        folder: Path,
        others: Sequence[Actor],
        send: Callable[[Actor, Message], None],
        reachable: Callable[[Actor], bool] = lambda actor: True,
    ) -> None:
        self._log = log
        self._copies = {other: Copy(folder / f"{other.peer}.jsonl") for other in others}
        self._send = send
        self._reachable = reachable

    async def run(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.ask()

    def ask(self) -> None:
        """Ask each of the others that can be reached for more."""
        for other, copy in self._copies.items():
            if self._reachable(other) and not copy.full:
                self._send(other, copy.want())

    def heard(self, sender: Actor, message: LogWant | LogChunk) -> None:
        """What others than the group's coordinators say is nothing."""
        copy = self._copies.get(sender)
        if copy is None:
            return
        try:
            if isinstance(message, LogChunk):
                copy.take(message)
            elif (chunk := chunk_of(self._log, message)) is not None:
                self._send(sender, chunk)
        except OSError:
            pass  # the disk is full, or the log is gone: it is asked for again


@dataclass
class Copy:
    """Of another coordinator's log."""

    path: Path
    full: bool = False
    _begun: bytes = b""
    """Of a line that is longer than a chunk."""

    def __post_init__(self) -> None:
        mend_torn_tail(self.path)

    def want(self) -> LogWant:
        size = self._size
        return LogWant(name_of(self.path) or "", size + len(self._begun), _before(self.path, size, self._begun))

    def take(self, chunk: LogChunk) -> None:
        """Raises OSError."""
        there = self._size + len(self._begun)
        if chunk.offset != there:
            if chunk.offset or not self._set_aside():
                return  # an answer to what was asked before
        elif there and not self._begun and chunk.log != name_of(self.path):
            return
        whole, newline, begun = (self._begun + chunk.lines).rpartition(b"\n")
        self._begun = begun if len(begun) <= MAX_LINE else b""
        if newline:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(whole + newline)
        self.full = self._size > MAX_COPY

    @property
    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _set_aside(self) -> bool:
        """Begin a new copy. False: there are too many already."""
        self._begun = b""
        if not self.path.exists():
            return True
        for number in range(1, MAX_ASIDE + 1):
            aside = self.path.with_name(f"{self.path.stem}-{number}.jsonl")
            if not aside.exists():
                self.path.rename(aside)
                return True
        self.full = True
        return False


def chunk_of(log: Path, want: LogWant) -> LogChunk | None:
    """What is wanted of a log: whole lines, as far as they fit. None: nothing. Raises OSError."""
    name = name_of(log)
    if name is None:
        return None
    same = want.log == name and want.before == _before(log, want.offset, b"")
    offset = want.offset if same else 0
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read(MAX_LOG_BYTES)
    whole = lines[: lines.rfind(b"\n") + 1]
    if not whole and len(lines) == MAX_LOG_BYTES:
        whole = lines  # of a longer line
    return LogChunk(name, offset, whole) if whole else None


def name_of(log: Path) -> str | None:
    """A hash of the first line; None while there is none."""
    try:
        with log.open("rb") as file:
            first = file.readline(_FIRST)
    except FileNotFoundError:
        return None
    return hashlib.sha256(first).hexdigest() if first.endswith(b"\n") or len(first) == _FIRST else None


def _before(log: Path, size: int, begun: bytes) -> str:
    """A hash of the last bytes of the first `size` of a log, and what was begun after them."""
    tail = b""
    if size:
        with log.open("rb") as file:
            file.seek(max(0, size - _BEFORE))
            tail = file.read(min(size, _BEFORE))
    return hashlib.sha256((tail + begun)[-_BEFORE:]).hexdigest()
