"""The dialler: opens our streams to others, and whose turn it is where two dial each other.

Two that dial each other within one round trip open one TCP connection from both ends: both handshakes fail, and libp2p
dials neither way for the next five seconds. So the higher peer id lets the lower one go first. And one of two dials
that meet may get no answer for ten seconds, though the other has come through long since: it gives way to that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from swarm.net.addresses import AddressError
from swarm.net.bulk import PROTOCOL
from swarm.net.daemon import DialError
from swarm.net.handshake import Channel, Introduction, Role, introduce
from swarm.net.host import Host
from swarm.net.stream import Stream
from swarm.protocol.ids import Actor

FIRST_TURN_S = 1.0
REDIAL_TURN_S = 0.05
"""How long the higher peer id leaves it to the lower one to dial: at first as long as a busy machine takes to answer
over a long way, since two dials that cross cost five seconds; little to whom we have reached before, as by the request
for the run's manifest: the connection is mostly there still, and a dial that fails is how a death is noticed."""
MEETING_TURN_S = 0.5
"""What a dial still gets once the other has come through to us."""


class Dialler:
    """Of one actor. `has_link(peer id)`: whether a stream of ours to that peer is open."""

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
        """Where peers can be dialled. Of others the DHT is asked."""
        self.streams: Counter[str] = Counter()
        """Streams each peer has open to us."""
        self._host = host
        self._me = me
        self._run_hash = run_hash
        self._role = role
        self._certificate = certificate
        self._has_link = has_link
        self._arrivals: dict[str, asyncio.Event] = {}
        """Set when a peer reaches us while we leave the dial to it."""

    async def reach(self, actor: Actor, channel: Channel) -> Stream:
        """A stream of ours, when it is our turn. Raises DialError, Refused, StreamClosed, TimeoutError."""
        await self._leave_to(actor.peer)
        return await self._dial(actor, channel)

    async def open(self, peer_id: str, target: int | None, channel: Channel) -> Stream:
        """A stream of ours to an incarnation, or to whichever there is, at once. Raises as `reach`."""
        if maddrs := self.maddrs.get(peer_id):
            try:
                await self._host.connect(peer_id, maddrs)
            except AddressError as error:
                raise DialError(str(error)) from None
        stream = await self._host.open_stream(peer_id, PROTOCOL)
        try:
            await introduce(stream, self._introduction(channel, target), peer_id)
        except BaseException:
            stream.abort()
            raise
        return stream

    def _introduction(self, channel: Channel, target: int | None) -> Introduction:
        return Introduction(self._run_hash, self._me, self._role, None, channel, target, self._certificate)

    def connected(self, peer_id: str) -> bool:
        """Whether there is a connection, whoever opened it."""
        return self.streams[peer_id] > 0 or self._has_link(peer_id)

    def learn(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self.maddrs[peer_id] = tuple(maddrs)

    def forget(self, peer_id: str) -> None:
        self.maddrs.pop(peer_id, None)
        self._host.reached.discard(peer_id)

    def came(self, peer_id: str) -> None:
        """It has opened a stream to us."""
        self.streams[peer_id] += 1
        if (arrival := self._arrivals.pop(peer_id, None)) is not None:
            arrival.set()

    def went(self, peer_id: str) -> None:
        """A stream that it had opened is closed."""
        self.streams[peer_id] -= 1
        if not self.streams[peer_id]:
            del self.streams[peer_id]

    async def _leave_to(self, peer_id: str) -> None:
        """Wait for a peer with a lower id to dial us, unless there is a connection."""
        if self._me.peer < peer_id or self.connected(peer_id):
            return
        arrival = self._arrivals.setdefault(peer_id, asyncio.Event())
        try:
            async with asyncio.timeout(REDIAL_TURN_S if peer_id in self._host.reached else FIRST_TURN_S):
                await arrival.wait()
        except TimeoutError:
            pass

    async def _dial(self, actor: Actor, channel: Channel) -> Stream:
        """A stream of ours, over the connection that the other opens meanwhile if our dial hangs."""
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
