"""The dialler: opens our streams to others, and decides which of two peers dials.

Two peers that dial each other within one round trip open one TCP connection from both ends: both handshakes fail, and
libp2p does not dial again for five seconds. So the peer with the higher id lets the lower one dial first. If two dials
collide nevertheless, one may get no answer for ten seconds although the other has succeeded: then the slow one is
dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from swarm.net.addresses import AddressError
from swarm.net.bulk import PROTOCOL
from swarm.net.daemon import DialError
from swarm.net.handshake import Channel, Introduction, Refused, Role, introduce
from swarm.net.host import Host
from swarm.net.listening import on_loopback
from swarm.net.stream import Stream
from swarm.protocol.ids import Actor

FIRST_TURN_S = 1.0
REDIAL_TURN_S = 0.05
"""Seconds for which the peer with the higher id waits for the dial of the other one.

FIRST_TURN_S applies to the first dial. It is as long as a busy, distant machine takes to answer, because a collision
costs five seconds. REDIAL_TURN_S applies to a peer that we have reached before, for example to fetch the manifest. It
is short because that connection usually still exists, and because a failed dial detects a dead peer.
"""
ADDRESSES_S = 2.0
"""Seconds for which a dial waits for the addresses of an unknown peer, which are being looked up meanwhile."""
MEETING_TURN_S = 0.5
"""Seconds for which our dial may continue after the other peer has reached us."""


class Dialler:
    """The dialler of one actor. `has_link(peer id)`: whether this actor has an open outgoing stream to that peer."""

    def __init__(
        self,
        host: Host,
        me: Actor,
        run_hash: str,
        role: Role,
        certificate: bytes,
        has_link: Callable[[str], bool],
    ) -> None:
        self.maddrs: dict[str, tuple[str, ...]] = {}
        """Known addresses by peer id; those of a process on this machine include loopback."""
        self._told: dict[str, tuple[str, ...]] = {}
        """By peer id, what was learned last."""
        self.streams: Counter[str] = Counter()
        """Number of streams that each peer has open to us."""
        self.on_rival: Callable[[str, bytes], None] = lambda peer_id, card: None
        """See `Network.on_rival`."""
        self._host = host
        self._me = me
        self._run_hash = run_hash
        self._role = role
        self._certificate = certificate
        self._has_link = has_link
        self._arrivals: dict[str, asyncio.Event] = {}
        """For each peer id, an event that is set when the peer reaches us while we wait for its dial."""
        self._sought: dict[str, asyncio.Event] = {}
        """For each peer id, an event that is set when we learn the peer's addresses, or when the peer reaches us."""

    async def reach(self, actor: Actor, channel: Channel) -> Stream:
        """Wait for our turn, then open a stream. Raises DialError, Refused, StreamClosed, TimeoutError."""
        await self._leave_to(actor.peer)
        return await self._dial(actor, channel)

    async def open(self, peer_id: str, target: int | None, channel: Channel) -> Stream:
        """Open a stream without waiting for our turn. Raises the same errors as `reach`.

        `target`: the incarnation to reach; None: any process of the peer. If the peer's addresses are unknown, wait for
        them for ADDRESSES_S at most.
        """
        await self._until_known(peer_id)
        if maddrs := self.maddrs.get(peer_id):
            try:
                await self._host.connect(peer_id, maddrs)
            except AddressError as error:
                raise DialError(str(error)) from None
        stream = await self._host.open_stream(peer_id, PROTOCOL)
        try:
            await introduce(stream, self._introduction(channel, target), peer_id)
        except BaseException as error:
            stream.abort()
            if isinstance(error, Refused) and error.rival:
                self.on_rival(peer_id, error.rival)
                raise DialError(str(error)) from None  # if we stay, that process has ended, and a later dial succeeds
            raise
        if channel is Channel.CONTROL:
            self._host.protect(peer_id)
        return stream

    def _introduction(self, channel: Channel, target: int | None) -> Introduction:
        return Introduction(self._run_hash, self._me, self._role, None, channel, target, self._certificate)

    def connected(self, peer_id: str) -> bool:
        """Whether there is a connection to the peer, whichever side opened it."""
        return self.streams[peer_id] > 0 or self._has_link(peer_id)

    def learn(self, peer_id: str, maddrs: Sequence[str]) -> bool:
        """Store the addresses of a peer; returns whether they have changed."""
        told = tuple(maddrs)
        changed = told != self._told.get(peer_id)
        if changed:
            self._told[peer_id] = told
            self.maddrs[peer_id] = tuple(dict.fromkeys((*told, *on_loopback(told))))
        self._found(peer_id)
        return changed

    def forget(self, peer_id: str) -> None:
        self.maddrs.pop(peer_id, None)
        self._told.pop(peer_id, None)
        self._host.reached.discard(peer_id)

    def came(self, peer_id: str) -> None:
        """Record that the peer has opened a stream to us."""
        self.streams[peer_id] += 1
        self._found(peer_id)
        if (arrival := self._arrivals.pop(peer_id, None)) is not None:
            arrival.set()

    def went(self, peer_id: str) -> None:
        """Record that a stream from the peer is closed."""
        self.streams[peer_id] -= 1
        if not self.streams[peer_id]:
            del self.streams[peer_id]

    async def _until_known(self, peer_id: str) -> None:
        if peer_id in self.maddrs or peer_id in self._host.reached or self.connected(peer_id):
            return
        sought = self._sought.setdefault(peer_id, asyncio.Event())
        try:
            async with asyncio.timeout(ADDRESSES_S):
                await sought.wait()
        except TimeoutError:
            self._sought.pop(peer_id, None)

    def _found(self, peer_id: str) -> None:
        if (sought := self._sought.pop(peer_id, None)) is not None:
            sought.set()

    async def _leave_to(self, peer_id: str) -> None:
        """If the peer has the lower id and is not connected, wait for a limited time until it dials us."""
        if self._me.peer < peer_id or self.connected(peer_id):
            return
        arrival = self._arrivals.setdefault(peer_id, asyncio.Event())
        try:
            async with asyncio.timeout(REDIAL_TURN_S if peer_id in self._host.reached else FIRST_TURN_S):
                await arrival.wait()
        except TimeoutError:
            pass

    async def _dial(self, actor: Actor, channel: Channel) -> Stream:
        """Open a stream. If our dial hangs, use the connection that the other peer opens meanwhile."""
        if self.connected(actor.peer):
            return await self.open(actor.peer, actor.incarnation, channel)
        arrival = self._arrivals.setdefault(actor.peer, asyncio.Event())
        came = asyncio.create_task(arrival.wait())
        dial = asyncio.create_task(self.open(actor.peer, actor.incarnation, channel))
        try:
            await asyncio.wait((came, dial), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((dial,), timeout=MEETING_TURN_S)
            if dial.done():
                return await dial
        finally:
            came.cancel()
            dial.cancel()
        return await self.open(actor.peer, actor.incarnation, channel)
