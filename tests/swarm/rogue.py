"""A libp2p client that runs no program of ours: it has come with a pass, and says what it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from peers.run.home import Home
from peers.runtime.address_book import ask
from peers.runtime.organisers import certificate_from_any
from swarm.manifest import RunManifest
from swarm.net import bulk, records
from swarm.net.bulk import PROTOCOL, Transfer
from swarm.net.handshake import Channel, Introduction, Role, introduce
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.invite import Invite
from swarm.net.stream import Stream
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor

DEADLINE_S = 60.0


class Rogue:
    def __init__(self, host: Host, run_hash: str, certificate: bytes, coordinator: Actor) -> None:
        self.host = host
        self._coordinator = coordinator
        self.run_hash = run_hash
        self.certificate = certificate

    async def find(self, home: Path) -> records.PeerRecord:
        """The record of the peer that lives in `home`: a coordinator tells it to whoever has a certificate."""
        peer = Identity.load(Home(home).identity).peer_id
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for record in (await ask(self, [self._coordinator], self.run_hash, b"", [peer]))[1]:
                    return record
                await asyncio.sleep(0.1)

    async def fetch(self, who: Actor | str, request: bytes, max_bytes: int) -> Transfer:
        """As a network's."""
        assert isinstance(who, Actor)
        return await bulk.request(await self._open(who, Channel.BULK, self.run_hash, 1), request, max_bytes)

    async def open(
        self, target: records.PeerRecord, channel: Channel, *, run_hash: str = "", incarnation: int = 1
    ) -> Stream:
        """A stream after the handshake. Raises Refused."""
        await self.host.connect(target.actor.peer, target.addresses)
        return await self._open(target.actor, channel, run_hash or self.run_hash, incarnation)

    async def _open(self, target: Actor, channel: Channel, run_hash: str, incarnation: int) -> Stream:
        stream = await self.host.open_stream(target.peer, PROTOCOL)
        me = Actor(self.host.peer_id, incarnation)
        hello = Introduction(run_hash, me, Role.PEER, None, channel, target.incarnation, self.certificate)
        try:
            await introduce(stream, hello, target.peer)
        except BaseException:
            stream.abort()
            raise
        return stream


@asynccontextmanager
async def rogue(folder: Path, invite: Invite, manifest: RunManifest) -> AsyncIterator[Rogue]:
    host = await Host.create(folder / "rogue" / "identity", ["/ip4/127.0.0.1/tcp/0"], invite.addresses, key=invite.key)
    try:
        assert invite.ticket is not None
        guest = Introduction(manifest.hash, Actor(host.peer_id, 0), Role.GUEST, None, Channel.BULK)
        guest = replace(guest, enrolment=invite.ticket.enrol(host.peer_id))
        coordinator = Actor(invite.coordinator, COORDINATOR_INCARNATION)
        yield Rogue(host, manifest.hash, await certificate_from_any(host, invite, guest), coordinator)
    finally:
        await host.close()
