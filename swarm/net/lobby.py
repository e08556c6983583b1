"""The lobby: streams whose openers have not said who they are.

Anybody can open streams and say nothing. When the lobby is full, the stream that has waited longest makes room: an
honest opener needs a round trip, so it has been let in long before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarm.net.stream import Stream

MOST = 256
"""Streams in all."""
MOST_OF_ONE = 8
"""Streams of one peer id."""


class Crowded(Exception):
    """This peer has enough streams that have said nothing."""


class Lobby:
    """Of one actor."""

    def __init__(self) -> None:
        self._waiting: dict[Stream, str] = {}
        """By stream, its opener; who came first is first."""

    @contextmanager
    def waits(self, stream: Stream, peer: str) -> Iterator[None]:
        """While this stream has not been let in. Raises Crowded."""
        if sum(other == peer for other in self._waiting.values()) >= MOST_OF_ONE:
            raise Crowded(f"more than {MOST_OF_ONE} streams at once that say nothing")
        while len(self._waiting) >= MOST:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.abort()
        self._waiting[stream] = peer
        try:
            yield
        finally:
            self._waiting.pop(stream, None)
