"""Bulk data of a peer that cannot be reached directly, through a coordinator, which every peer is connected to.

Two peers behind home routers cannot open a connection to each other. Relay messages carry their training traffic; this
file carries the data that one fetches from the other. The direct way is tried first.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarm.net.daemon import DialError, NotReady
from swarm.net.stream import Stream
from swarm.protocol.ids import Actor

HEAD_START_S = 3.0
"""Seconds that the direct way may take to open before the detour is taken: some round trips of a slow link, and less
than the patience of a peer that asks several.
"""
AGAIN_S = 60.0
"""Seconds until the direct way is tried again."""
_FORM = re.compile(rb"(detour|for) ([1-9A-HJ-NP-Za-km-z]{1,128}) (-|0|[1-9][0-9]{0,18})\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Detour:
    """A request to pass on. `incarnation` None: any process of the peer."""

    peer: str
    incarnation: int | None
    request: bytes

    def encode(self) -> bytes:
        incarnation = "-" if self.incarnation is None else self.incarnation
        return f"detour {self.peer} {incarnation}\n".encode() + self.request

    @classmethod
    def decode(cls, raw: bytes) -> Detour | None:
        """None if `raw` is not a request to pass on."""
        if (found := _FORM.fullmatch(raw)) is None or found[1] != b"detour":
            return None
        return cls(found[2].decode(), None if found[3] == b"-" else int(found[3]), found[4])


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A request as a coordinator passes it on. `origin` is its sender, whose own permissions apply."""

    origin: Actor
    request: bytes

    def encode(self) -> bytes:
        return f"for {self.origin.peer} {self.origin.incarnation}\n".encode() + self.request

    @classmethod
    def decode(cls, raw: bytes) -> PassedOn | None:
        """None if `raw` is the sender's own request."""
        if (found := _FORM.fullmatch(raw)) is None or found[1] != b"for" or found[3] == b"-":
            return None
        return cls(Actor(found[2].decode(), int(found[3])), found[4])


class NoStraightWay(DialError):
    """There is no connection, and none is tried for a while."""


class StraightWays:
    """Remembers for a while the peers that cannot be dialled."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed_until: dict[str, float] = {}
        self._late: set[asyncio.Future[Stream]] = set()

    async def open(self, peer_id: str, opening: Callable[[], Awaitable[Stream]]) -> Stream:
        """A stream by `opening`. Raises NoStraightWay if none opens within HEAD_START_S, or none did lately.

        A peer that is only slow to answer counts as reachable as soon as it has answered, even if the caller has given
        up.
        """
        if self._clock() < self._closed_until.get(peer_id, 0.0):
            raise NoStraightWay(f"{peer_id} could not be reached a while ago")
        stream = asyncio.ensure_future(opening())
        try:
            async with asyncio.timeout(HEAD_START_S):
                opened = await asyncio.shield(stream)
        except NotReady:
            raise
        except (DialError, TimeoutError) as error:
            self._close(peer_id, stream)
            raise NoStraightWay(str(error) or f"{peer_id} has not answered for {HEAD_START_S:g} s") from None
        except asyncio.CancelledError:
            self._close(peer_id, stream)  # as far as we know; the caller has given up
            raise
        self._closed_until.pop(peer_id, None)
        return opened

    def _close(self, peer_id: str, stream: asyncio.Future[Stream]) -> None:
        now = self._clock()
        self._closed_until = {peer: until for peer, until in self._closed_until.items() if until > now}
        self._closed_until[peer_id] = now + AGAIN_S

        def answered(late: asyncio.Future[Stream]) -> None:
            self._late.discard(late)
            if not late.cancelled() and late.exception() is None:
                late.result().abort()
                self._closed_until.pop(peer_id, None)

        self._late.add(stream)
        stream.add_done_callback(answered)
