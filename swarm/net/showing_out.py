"""Closes the connections of strangers: peers that this actor has refused, and that have no other business with it.

A libp2p connection can carry any number of streams, so a stranger that stays connected can open further ones at almost
no cost. If its connection is closed, it has to pay for another handshake of libp2p first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

READ_S = 2.0
"""Seconds that a stranger gets to read why it is refused."""
MOST = 1024
"""Largest number of strangers that are waited for. Further ones are cut off at once."""


class ShowingOut:
    """The strangers of one actor whose connections are to be closed."""

    def __init__(self, cut: Callable[[str], None], known: Callable[[str], bool]) -> None:
        """`cut(peer id)` closes the connection to a peer. It is not called if `known(peer id)` at that moment."""
        self._cut = cut
        self._known = known
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def soon(self, peer_id: str) -> None:
        """Close the connection once the peer can have read what it was told."""
        if peer_id in self._timers:
            return
        if len(self._timers) >= MOST:
            self.now(peer_id)
            return
        self._timers[peer_id] = asyncio.get_running_loop().call_later(READ_S, self.now, peer_id)

    def now(self, peer_id: str) -> None:
        """Close the connection: the peer was told nothing that it could read."""
        if (timer := self._timers.pop(peer_id, None)) is not None:
            timer.cancel()
        if not self._known(peer_id):
            self._cut(peer_id)

    def close(self) -> None:
        """Forget all."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
