"""A lane: one kind of traffic, from the view of the stream that writes it. Kinds differ in weight (see channel.py)."""

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
        """A place in the lane for a frame that begins now."""
        ...

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece of at most `piece` bytes may leave."""

    def wrote(self, nbytes: int) -> None:
        """A piece for which `take` has returned is written, or given up."""
