"""The lobby: incoming streams whose Hello has not arrived.

Any peer can open streams and send nothing. When the lobby is full, the stream that has waited longest is aborted: an
honest opener's Hello arrives after one round trip, so the oldest stream is probably not an honest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarm.net.stream import Stream

MOST = 256
"""Largest number of waiting streams."""
MOST_OF_ONE = 8
"""Largest number of waiting streams from one peer id."""


class Crowded(Exception):
    """The peer has too many streams without a Hello."""


class Lobby:
    """The waiting streams of one actor."""

    def __init__(self) -> None:
        self._waiting: dict[Stream, str] = {}
        """{stream: peer id of its opener}, oldest first."""

    @contextmanager
    def waits(self, stream: Stream, peer: str) -> Iterator[None]:
        """Count a stream as waiting during the block. Raises Crowded."""
        if sum(other == peer for other in self._waiting.values()) >= MOST_OF_ONE:
            raise Crowded(f"more than {MOST_OF_ONE} open streams without a hello")
        while len(self._waiting) >= MOST:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.abort()
        self._waiting[stream] = peer
        try:
            yield
        finally:
            self._waiting.pop(stream, None)
