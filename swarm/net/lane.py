"""The interface of a lane: a stream asks its lane before it writes.

Each kind of traffic has a lane (see channel.py).
"""

from __future__ import annotations

from typing import Protocol

MAX_PIECE = 256 << 10
"""Largest number of bytes that are written at a time."""


class Lane(Protocol):
    """Called for each piece of a frame before it is written."""

    @property
    def piece(self) -> int:
        """Bytes that are written at a time."""
        ...

    def frame(self) -> int:
        """A number that orders a new frame behind the earlier frames of this lane."""
        ...

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece of at most `piece` bytes may be sent."""

    def wrote(self, nbytes: int) -> None:
        """Call after a piece for which `take` has returned is written, or its write has failed."""
