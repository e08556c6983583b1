"""A libp2p client that belongs to nobody: it knows the run and says what it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from peers.run.home import Home
from swarm.manifest import RunManifest
from swarm.net import records
from swarm.net.bulk import PROTOCOL
from swarm.net.handshake import Channel, Introduction, Role, introduce
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.invite import Invite
from swarm.net.stream import Stream
from swarm.protocol.ids import Actor

DEADLINE_S = 60.0


class Rogue:
    def __init__(self, host: Host, run_hash: str) -> None:
        self.host = host
        self.run_hash = run_hash

    async def find(self, home: Path) -> records.PeerRecord:
        """The record of the peer that lives in `home`: what anybody can look up who knows its id."""
        peer = Identity.load(Home(home).identity).peer_id
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for record in await records.lookup(self.host, self.run_hash, [peer]):
                    return record
                await asyncio.sleep(0.1)

    async def open(
        self, target: records.PeerRecord, channel: Channel, *, run_hash: str = "", incarnation: int = 1
    ) -> Stream:
        """A stream after the handshake. Raises Refused."""
        await self.host.connect(target.actor.peer, target.addresses)
        stream = await self.host.open_stream(target.actor.peer, PROTOCOL)
        me = Actor(self.host.peer_id, incarnation)
        hello = Introduction(run_hash or self.run_hash, me, Role.PEER, None, channel, target.actor.incarnation)
        try:
            await introduce(stream, hello, target.actor.peer)
        except BaseException:
            stream.abort()
            raise
        return stream


@asynccontextmanager
async def rogue(folder: Path, invite: Invite, manifest: RunManifest) -> AsyncIterator[Rogue]:
    host = await Host.create(folder / "rogue" / "identity", ["/ip4/127.0.0.1/tcp/0"], invite.addresses)
    try:
        yield Rogue(host, manifest.hash)
    finally:
        await host.close()
