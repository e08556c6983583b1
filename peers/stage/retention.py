"""Keeps the encoded frames of a peer until their step is decided: in memory up to a budget, and beyond it on disk.

A peer that recovers needs the exact frames, so they must be kept even when nothing fails. A frame that exceeds the
budget is written to a spill file and read back when a peer wants it. The file is emptied when a new pass begins.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from swarm.buffer import Buffer


@dataclass(frozen=True, slots=True)
class Spilled:
    """The place of a frame in the spill file."""

    generation: int
    offset: int
    nbytes: int


class Retention:
    """The kept frames of one peer. Used from one thread. `keep` returns the value for the core, `bytes_of` the bytes to
    send.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        """Limit of the frames in memory, in bytes."""
        self._held = 0
        self._spilled = 0
        self._generation = 0
        self._file: int | None = None
        self._closed = False
        self.peak_bytes = 0
        """Most bytes kept in one pass, in memory and on disk together."""

    def begin(self) -> None:
        """Begin a new pass: forget all frames."""
        self._held = 0
        self._generation += 1
        if self._file is not None and self._spilled:
            os.ftruncate(self._file, 0)
        self._spilled = 0

    def keep(self, payload: Buffer) -> Buffer | Spilled:
        """Keep a payload. Raises OSError if the disk is full. After `close`, nothing is kept."""
        size = len(payload)
        if self._closed:  # the compute thread finishes its task after the peer has stopped
            return Spilled(self._generation, 0, size)
        if self._held + size <= self.budget_bytes:
            self._held += size
            kept: Buffer | Spilled = payload
        else:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file, name = tempfile.mkstemp(prefix="retention-", dir=self.folder)
                os.unlink(name)  # the file disappears with the process, however the process ends
            kept = Spilled(self._generation, self._spilled, size)
            written = 0
            while written < size:
                written += os.pwrite(self._file, payload[written:], self._spilled + written)
            self._spilled += size
        self.peak_bytes = max(self.peak_bytes, self._held + self._spilled)
        return kept

    def bytes_of(self, kept: object) -> object:
        """The payload itself; a value that `keep` did not make is returned unchanged. None if its pass is over."""
        if not isinstance(kept, Spilled):
            return kept
        if kept.generation != self._generation or self._file is None:
            return None
        return os.pread(self._file, kept.nbytes, kept.offset)

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None
