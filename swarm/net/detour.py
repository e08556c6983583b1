"""Detours: bulk transfers between peers that cannot connect directly, forwarded by a coordinator.

Every peer is connected to the coordinators, but two peers behind home routers cannot open a connection to each other.
Relay messages carry their training traffic; detours carry their bulk transfers. A direct connection is tried first.
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
"""Seconds within which a direct stream must open; after that, the request takes a detour.

Enough for several round trips on a slow link, and shorter than the timeout of a peer that asks several others in turn.
"""
AGAIN_S = 60.0
"""Seconds after a failure until a direct connection is tried again."""
_FORM = re.compile(rb"(detour|for) ([1-9A-HJ-NP-Za-km-z]{1,128}) (-|0|[1-9][0-9]{0,18})\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Detour:
    """A request that a coordinator is asked to forward to `peer`. `incarnation` None: any process of the peer."""

    peer: str
    incarnation: int | None
    request: bytes

    def encode(self) -> bytes:
        incarnation = "-" if self.incarnation is None else self.incarnation
        return f"detour {self.peer} {incarnation}\n".encode() + self.request

    @classmethod
    def decode(cls, raw: bytes) -> Detour | None:
        """The detour in a bulk request; None if `raw` is a direct request."""
        if (found := _FORM.fullmatch(raw)) is None or found[1] != b"detour":
            return None
        return cls(found[2].decode(), None if found[3] == b"-" else int(found[3]), found[4])


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A request as the coordinator forwards it. `origin`: the first sender, whose permissions apply to the request."""

    origin: Actor
    request: bytes

    def encode(self) -> bytes:
        return f"for {self.origin.peer} {self.origin.incarnation}\n".encode() + self.request

    @classmethod
    def decode(cls, raw: bytes) -> PassedOn | None:
        """The forwarded request in a bulk request; None if `raw` is the sender's own request."""
        if (found := _FORM.fullmatch(raw)) is None or found[1] != b"for" or found[3] == b"-":
            return None
        return cls(Actor(found[2].decode(), int(found[3])), found[4])


class NoStraightWay(DialError):
    """No direct connection to the peer could be opened, and none is tried again for AGAIN_S."""


class StraightWays:
    """Opens direct streams. It remembers for AGAIN_S which peers could not be dialled."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed_until: dict[str, float] = {}
        self._late: set[asyncio.Future[Stream]] = set()

    async def open(self, peer_id: str, opening: Callable[[], Awaitable[Stream]]) -> Stream:
        """The stream that `opening` opens. Raises NoStraightWay if this fails within HEAD_START_S, or failed recently.

        A slow peer counts as reachable again as soon as its late answer arrives, even if the caller has given up.
        """
        if self._clock() < self._closed_until.get(peer_id, 0.0):
            raise NoStraightWay(f"{peer_id} could not be reached in the last {AGAIN_S:g} s")
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
            self._close(peer_id, stream)  # the caller has given up; count the peer as unreachable until it answers
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
