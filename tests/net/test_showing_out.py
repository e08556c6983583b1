"""A stranger is told why it is refused, and its connection is closed. A member's connection stays."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import p2pd_pb2

from swarm.net.bulk import PROTOCOL
from swarm.net.daemon import CONTROL_S
from swarm.net.handshake import Channel, Introduction, Refused, Role, introduce
from swarm.net.host import Host
from swarm.net.lobby import MOST_OF_ONE
from swarm.net.showing_out import MOST, ShowingOut
from swarm.net.stream import StreamClosed
from swarm.protocol.ids import Actor

DEADLINE_S = 60.0
JUNK = struct.pack("<II", 1 << 31, 0)
"""The head of a frame that is too long."""
Pair = Any
MakeHost = Callable[..., Awaitable[Host]]


async def connected(host: Host) -> set[str]:
    """Peers to which the daemon of a host has a connection."""
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
    stream, response = await host._daemon._request(request, "list peers", CONTROL_S)
    stream.close()
    return {PeerID(peer.id).to_base58() for peer in response.peers}


async def until_cut(stranger: Host, host: Host) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while host.peer_id in await connected(stranger):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
async def stranger(make_host: MakeHost, pair: Pair) -> Host:
    """A host with an address of the second of two members, to which it has a connection."""
    await pair.start()
    host = await make_host()
    await host.connect(pair.hosts[1].peer_id, await pair.hosts[1].addresses())
    assert pair.hosts[1].peer_id in await connected(host)
    return host


async def test_a_stranger_reads_the_refusal_and_is_cut_off_and_may_try_again(pair: Pair, stranger: Host) -> None:
    a, b = pair.networks
    member = await a._dialler.open(b.me.peer, None, Channel.CONTROL)
    me = Introduction(b.admission.door.run_hash, Actor(stranger.peer_id, 1), Role.PEER, None, Channel.CONTROL)
    for _ in range(2):
        await stranger.connect(b.me.peer, await pair.hosts[1].addresses())
        stream = await stranger.open_stream(b.me.peer, PROTOCOL)
        with pytest.raises(Refused, match="you show no valid pass"):
            await introduce(stream, me, b.me.peer)
        stream.close()
        await until_cut(stranger, pair.hosts[1])
    assert b.me.peer in await connected(pair.hosts[0]) and member._ended is None
    member.abort()


@pytest.mark.parametrize("sends", ["junk", "nothing, on many streams"])
async def test_who_sends_junk_or_nothing_is_cut_off_at_once(pair: Pair, stranger: Host, sends: str) -> None:
    b = pair.networks[1]
    streams = []
    for _ in range(1 if sends == "junk" else MOST_OF_ONE + 1):
        streams.append(await stranger.open_stream(b.me.peer, PROTOCOL))
    if sends == "junk":
        await streams[0].write(JUNK)
    await until_cut(stranger, pair.hosts[1])
    for stream in streams:
        with pytest.raises(StreamClosed):
            await stream.read_exactly(1)


async def test_a_member_that_sends_junk_on_another_stream_keeps_its_connection(pair: Pair) -> None:
    a, b = await pair.start()
    member = await a._dialler.open(b.me.peer, None, Channel.CONTROL)
    junk = await pair.hosts[0].open_stream(b.me.peer, PROTOCOL)
    await junk.write(JUNK)
    await pair.two.until(lambda: bool(b.admission.refused))
    with pytest.raises(StreamClosed):
        await junk.read_exactly(1)
    assert b.me.peer in await connected(pair.hosts[0]) and member._ended is None
    member.abort()


async def test_whom_we_know_by_then_is_not_cut_off() -> None:
    cut: list[str] = []
    known: set[str] = set()
    out = ShowingOut(cut.append, known.__contains__)
    out.soon("a")
    out.soon("a")
    known.add("a")
    out.now("a")
    assert cut == []
    for number in range(MOST + 1):
        out.soon(str(number))
    assert cut == [str(MOST)], "the others still may read"
    out.now("7")
    assert cut == [str(MOST), "7"]
    out.close()
    out.soon("7")
    assert cut == [str(MOST), "7"], "it has time to read again"
    out.close()
