"""Whom a node of the DHT answers, and how much it keeps for whom."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from swarm.net import dht_protocol, records
from swarm.net.dht_clock import get_dht_time
from swarm.net.dht_protocol import NOT_FOR_YOU, Allowance, NotAdmitted, SwarmProtocol, TooMany, node_id_of
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.proto import records_pb2
from swarm.net.records import PeerRecord, RecordGuard
from swarm.net.run_key import RunKey
from swarm.protocol.ids import Actor

RUN = "ab" * 32
KEY, OTHER_KEY = RunKey(bytes(32)), RunKey(b"x" * 32)
Made = Callable[..., Awaitable[Host]]


def record_of(peer: str, lasts_s: float = 30.0) -> PeerRecord:
    where = ("/ip4/8.8.8.8/tcp/4001",)
    return PeerRecord(RUN, Actor(peer, 1), where, Role.PEER, None, -1, 1.0, get_dht_time() + lasts_s)


def store_of(owner: Identity, key: RunKey, token: bytes = b"", lasts_s: float = 30.0) -> dht_pb2.StoreRequest:
    record = record_of(owner.peer_id, lasts_s)
    request = dht_pb2.StoreRequest()
    request.auth.signature = token
    request.keys.append(DHTID.generate(key.place(owner.peer_id)).to_bytes())
    request.subkeys.append(MSGPackSerializer.dumps(owner.peer_id))
    request.values.append(MSGPackSerializer.dumps(records.seal_record(owner, record, key)))
    request.expiration_time.append(record.expires_at)
    request.in_cache.append(False)
    return request


def store_under(sender: Identity, victim: str) -> dht_pb2.StoreRequest:
    """The request of a stranger that knows the DHT key of a member's record, such as from a revoked invite."""
    key_id, until = DHTID.generate(KEY.place(victim)).to_bytes(), get_dht_time() + 60
    signature = sender.key.sign(records._SEALED + records._bound(key_id, sender.peer_id, until) + b"x")
    value = records_pb2.SealedRecord(sealed=b"x", signature=signature).SerializeToString()
    return dht_pb2.StoreRequest(
        keys=[key_id],
        subkeys=[MSGPackSerializer.dumps(sender.peer_id)],
        values=[MSGPackSerializer.dumps(value)],
        expiration_time=[until],
        in_cache=[False],
    )


def with_blind(request: dht_pb2.StoreRequest, blind: bytes) -> dht_pb2.StoreRequest:
    """The same request, with another proof of whose its DHT key is. `blind` empty: with none."""
    record = records_pb2.SealedRecord.FromString(MSGPackSerializer.loads(request.values[0]))
    record.blind = blind
    changed = dht_pb2.StoreRequest()
    changed.CopyFrom(request)
    changed.values[0] = MSGPackSerializer.dumps(record.SerializeToString())
    return changed


class Node:
    """The protocol of a node without a daemon."""

    def __init__(self, key: RunKey | None) -> None:
        self.protocol = SwarmProtocol(_initialized_with_create=True)
        from hivemind.dht.routing import RoutingTable
        from hivemind.dht.storage import DHTLocalStorage

        me = DHTID.generate("me")
        self.protocol.node_id, self.protocol.bucket_size = me, 20
        self.protocol.storage, self.protocol.routing_table = DHTLocalStorage(), RoutingTable(me, 20, 5)
        self.protocol.record_validator = RecordGuard(key)
        self.protocol.node_info = dht_pb2.NodeInfo(node_id=me.to_bytes())

    async def store(self, sender: str, request: dht_pb2.StoreRequest) -> list[bool]:
        return list((await self.protocol.rpc_store(request, context(sender))).store_ok)


def context(sender: str) -> P2PContext:
    peer = PeerID.from_base58(sender)
    return P2PContext(handle_name="", local_id=peer, remote_id=peer)


async def test_a_stranger_at_a_members_node_gets_one_refusal_for_everything(make_host: Made) -> None:
    victim = await make_host(key=KEY)
    where = await victim.addresses()
    member = await make_host(where, key=KEY)
    assert await records.publish(member, record_of(member.peer_id))
    place = DHTID.generate(KEY.place(member.peer_id)).to_bytes()
    for key in (None, OTHER_KEY):
        stranger = await make_host(where, key=key)  # it is reached, though it admits nobody
        stub = stranger.dht.protocol.get_stub(PeerID.from_base58(victim.peer_id))
        me = stranger.dht.protocol.node_info
        said = set()
        for call, request in (
            (stub.rpc_ping, dht_pb2.PingRequest(peer=me)),
            (stub.rpc_find, dht_pb2.FindRequest(keys=[place], peer=me)),
            (stub.rpc_store, store_of(stranger.identity, KEY)),
        ):
            with pytest.raises(P2PHandlerError, match=NOT_FOR_YOU) as refused:
                await call(request, timeout=60)
            said.add(str(refused.value))
        assert len(said) == 1
        assert len(victim.dht.protocol.storage) <= 1
        assert PeerID.from_base58(stranger.peer_id) not in victim.dht.protocol.routing_table


async def test_libp2p_itself_tells_a_stranger_of_nobody(make_host: Made) -> None:
    coordinator = await make_host(key=KEY)
    where = await coordinator.addresses()
    member = await make_host(where, key=KEY)
    stranger = await make_host(where)
    with pytest.raises(ConnectionError, match="no addresses"):
        await stranger.open_stream(member.peer_id, "/swarm-peer/stream")


async def test_a_bare_node_names_no_other(make_host: Made) -> None:
    node = await make_host()
    where = await node.addresses()
    member = await make_host(where, key=KEY)
    stranger = await make_host(where)
    stub = stranger.dht.protocol.get_stub(PeerID.from_base58(node.peer_id))
    key = DHTID.generate(KEY.place(member.peer_id)).to_bytes()
    request = dht_pb2.FindRequest(keys=[key], peer=stranger.dht.protocol.node_info)
    found = await stub.rpc_find(request, timeout=60)
    assert PeerID.from_base58(member.peer_id) in node.dht.protocol.routing_table
    assert not found.results[0].nearest_peer_ids


async def test_a_strangers_record_under_the_same_key_hides_no_member(make_host: Made) -> None:
    """hivemind ignores an answer with one invalid record."""
    node = await make_host()
    where = await node.addresses()
    member = await make_host(where, key=KEY)
    stranger, seeker = await make_host(where), await make_host(where, key=KEY)
    assert await records.publish(member, record_of(member.peer_id))
    stub = stranger.dht.protocol.get_stub(PeerID.from_base58(node.peer_id))
    assert (await stub.rpc_store(store_under(stranger.identity, member.peer_id), timeout=60)).store_ok[0]
    found = await records.lookup(seeker, RUN, [member.peer_id])
    assert [record.actor.peer for record in found] == [member.peer_id]


async def test_an_answer_without_a_valid_record_is_no_answer(tmp_path: Path) -> None:
    """A search ends at once if an answer seems to last for ever; then no other node would be asked."""
    me, liar = Identity.load(tmp_path / "me"), Identity.load(tmp_path / "liar")
    node = Node(None)
    await node.store(liar.peer_id, store_under(liar, me.peer_id))
    key = DHTID.generate(KEY.place(me.peer_id))
    result = node.protocol._found(key, key)
    result.expiration_time = float("inf")

    class Lying:
        async def rpc_find(self, request: dht_pb2.FindRequest, timeout: float | None = None) -> dht_pb2.FindResponse:
            return dht_pb2.FindResponse(results=[result])

    peers = [PeerID.from_base58(each.peer_id) for each in (liar, me)]
    stub = dht_protocol._Stub(Lying(), peers[0], RecordGuard(KEY), peers[1])
    answer = await stub.rpc_find(dht_pb2.FindRequest(keys=[key.to_bytes()]))
    assert answer.results[0].type == dht_pb2.NOT_FOUND


async def test_nothing_is_sent_to_a_node_that_is_met(make_host: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """hivemind sends what it stores to each node that comes near."""
    node = await make_host(key=KEY)
    where = await node.addresses()
    member = await make_host(where, key=KEY)
    sent: list[Any] = []
    monkeypatch.setattr(node.dht.protocol, "call_store", lambda *args, **more: sent.append(args))
    assert await records.publish(member, record_of(member.peer_id))
    late = await make_host(where, key=KEY)
    async with asyncio.timeout(60):
        while PeerID.from_base58(late.peer_id) not in node.dht.protocol.routing_table:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not sent


async def test_a_member_stores_its_own_record_and_no_others(tmp_path: Path) -> None:
    me, other = Identity.load(tmp_path / "me"), Identity.load(tmp_path / "other")
    node = Node(KEY)
    token = KEY.token(me.peer_id)
    assert await node.store(me.peer_id, store_of(me, KEY, token)) == [True]
    assert await node.store(me.peer_id, store_of(other, KEY, token)) == [False], "it is about somebody else"
    with pytest.raises(NotAdmitted):
        await node.store(other.peer_id, store_of(other, KEY, token))
    cached = store_of(me, KEY, token, lasts_s=40)
    cached.in_cache[0] = True
    assert await node.store(me.peer_id, cached) == [False]
    node.protocol.record_validator.banned = frozenset({me.peer_id})
    with pytest.raises(NotAdmitted):
        await node.store(me.peer_id, store_of(me, KEY, token))


async def test_a_bare_node_keeps_a_few_records_of_one_sender_and_so_many_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dht_protocol, "MAX_KEPT", 5)
    node = Node(None)
    me = Identity.load(tmp_path / "me")
    keys = [RunKey(bytes([number]) * 32) for number in range(4)]
    kept = [(await node.store(me.peer_id, store_of(me, key)))[0] for key in keys]
    assert kept == [True, True, False, False]
    assert (await node.store(me.peer_id, store_of(me, keys[0], lasts_s=60)))[0], "a newer one in its place"
    others = [Identity.load(tmp_path / f"other{number}") for number in range(4)]
    kept = [(await node.store(each.peer_id, store_of(each, KEY)))[0] for each in others]
    assert kept == [True, True, True, False]
    assert len(node.protocol.storage) == 5


async def test_nobody_takes_the_place_of_a_members_record_at_a_bare_node(tmp_path: Path) -> None:
    """Otherwise a coordinator that has moved could be hidden by those who know the DHT key of its record."""
    me = Identity.load(tmp_path / "me")
    node, request = Node(None), store_of(me, KEY)
    others = [Identity.load(tmp_path / f"other{number}") for number in range(dht_protocol.OWNERS_OF_ONE)]
    kept = [(await node.store(each.peer_id, store_under(each, me.peer_id)))[0] for each in others]
    assert kept == [True, True, True, False]
    for blind in (b"", KEY.blind(others[0].peer_id), KEY.blind(me.peer_id)[:-1]):
        assert await node.store(me.peer_id, with_blind(request, blind)) == [False]
    assert await node.store(me.peer_id, request) == [True]
    assert node.protocol._owners(DHTID.from_bytes(request.keys[0])) == dht_protocol.OWNERS_OF_ONE


async def test_a_bare_node_stores_the_records_of_an_older_release(tmp_path: Path) -> None:
    """They prove nothing."""
    me = Identity.load(tmp_path / "me")
    assert await Node(None).store(me.peer_id, with_blind(store_of(me, KEY), b"")) == [True]


async def test_a_nodes_place_follows_from_its_peer_id(tmp_path: Path) -> None:
    me = Identity.load(tmp_path / "me")
    node = Node(None)
    request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=DHTID.generate("chosen").to_bytes()))
    with pytest.raises(ValueError, match="does not match the"):
        await node.protocol.rpc_ping(request, context(me.peer_id))
    peer = PeerID.from_base58(me.peer_id)
    await node.protocol.rpc_ping(
        dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=node_id_of(peer))), context(me.peer_id)
    )
    assert peer in node.protocol.routing_table


async def test_a_sender_that_asks_too_often_waits(tmp_path: Path) -> None:
    now = [0.0]
    allowance = Allowance(lambda: now[0])
    for _ in range(int(dht_protocol.BURST)):
        allowance.take("me")
    with pytest.raises(TooMany):
        allowance.take("me")
    allowance.take("you")
    now[0] += 1.0
    for _ in range(int(dht_protocol.RATE)):
        allowance.take("me")
    with pytest.raises(TooMany):
        allowance.take("me")


async def test_the_counts_of_senders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_protocol, "MAX_SENDERS", 3)
    allowance = Allowance(lambda: 0.0)
    for number in range(10):
        allowance.take(str(number))
    assert len(allowance._left) == 3


def test_a_record_of_another_time_is_not_the_same_record(tmp_path: Path) -> None:
    me = Identity.load(tmp_path / "me")
    record = record_of(me.peer_id)
    raw = records.seal_record(me, record, KEY)
    key_id = DHTID.generate(KEY.place(me.peer_id)).to_bytes()
    assert records.open_sealed(raw, key_id, me.peer_id, record.expires_at, KEY) == record
    later = dataclasses.replace(record, expires_at=record.expires_at + 60)
    with pytest.raises(records.PublicRecordError):
        records.open_sealed(raw, key_id, me.peer_id, later.expires_at, KEY)
