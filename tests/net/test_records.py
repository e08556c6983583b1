"""Sealed records in a real DHT of three nodes, and what its guard refuses."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given
from hypothesis import strategies as st

from swarm.net import records
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.proto import records_pb2
from swarm.net.records import PeerRecord, PublicRecordError, RecordGuard, open_record
from swarm.net.run_key import RunKey
from swarm.protocol.ids import Actor, StageIndex

RUN = "ab" * 32
KEY = RunKey(bytes(range(32)))
WHERE = ("/ip4/127.0.0.1/tcp/4001",)


def record_of(peer: str, incarnation: int = 1, **changes: Any) -> PeerRecord:
    record = PeerRecord(RUN, Actor(peer, incarnation), WHERE, Role.PEER, StageIndex(2), 7, 1.5, get_dht_time() + 30)
    return dataclasses.replace(record, **changes)


async def test_records_are_found_by_every_member_and_the_newest_counts(
    make_host: Callable[..., Awaitable[Host]],
) -> None:
    first = await make_host(key=KEY)
    bootstrap = await first.addresses()
    second, third = await make_host(bootstrap, key=KEY), await make_host(bootstrap, key=KEY)
    mine, older = record_of(second.peer_id, 2), record_of(third.peer_id)
    newer = dataclasses.replace(older, actor=Actor(third.peer_id, 5), version=-1, stage=None)
    newer = dataclasses.replace(newer, expires_at=older.expires_at + 1)
    assert await records.publish(second, mine)
    assert await records.publish(third, older)
    assert await records.publish(third, newer)
    everybody = [second.peer_id, third.peer_id]
    for host in (first, second, third):
        assert await records.lookup(host, RUN, [*everybody, first.peer_id]) == sorted(
            [mine, newer], key=lambda r: r.actor
        )
        assert await records.lookup(host, RUN, [second.peer_id]) == [mine]
        assert await records.lookup(host, "cd" * 32, everybody) == []
    # the DHT itself refuses a value that is no record, and one signed by another
    assert not await first.dht.store("anything", b"value", get_dht_time() + 30)
    with pytest.raises(PublicRecordError, match="cannot publish the record of"):
        await records.publish(first, mine)


async def test_a_node_without_the_run_key_keeps_records_and_reads_none(
    make_host: Callable[..., Awaitable[Host]],
) -> None:
    node = await make_host()
    entry = await node.addresses()
    one, two = await make_host(entry, key=KEY), await make_host(entry, key=KEY)
    mine = record_of(one.peer_id)
    assert await records.publish(one, mine)
    assert await records.lookup(two, RUN, [one.peer_id]) == [mine], "the other member can read it"
    assert len(node.dht.protocol.storage) == 1
    for _, kept in node.dht.protocol.storage.items():
        raw = MSGPackSerializer.dumps(kept.value)
        assert bytes.fromhex(RUN) not in raw and WHERE[0].encode() not in raw
    assert await records.lookup(node, RUN, [one.peer_id]) == []
    with pytest.raises(PublicRecordError, match="without a run key"):
        await records.publish(node, record_of(node.peer_id))


def dht_record(raw: bytes, peer: str, expiration: float, subkey: str | None = "its peer") -> DHTRecord:
    key = DHTID.generate(KEY.place(peer)).to_bytes()
    subkey = peer if subkey == "its peer" else subkey
    return DHTRecord(key, MSGPackSerializer.dumps(subkey), MSGPackSerializer.dumps(raw), expiration)


@pytest.mark.parametrize("key", [KEY, None], ids=["member", "bare"])
def test_the_guard_refuses_what_is_forged_misplaced_or_kept_alive(tmp_path: Path, key: RunKey | None) -> None:
    me, other = Identity.load(tmp_path / "me"), Identity.load(tmp_path / "other")
    record = record_of(me.peer_id)
    raw, until = records.seal_record(me, record, KEY), record.expires_at
    guard = RecordGuard(key)
    assert guard.validate(dht_record(raw, me.peer_id, until))
    assert not guard.validate(dht_record(raw, other.peer_id, until)), "moved"
    for subkey in (None, other.peer_id):
        assert not guard.validate(dht_record(raw, me.peer_id, until, subkey)), "under another name"
    for later in (until + 1, until - 1):
        assert not guard.validate(dht_record(raw, me.peer_id, later)), "replayed"
    assert not guard.validate(dht_record(raw[:-1] + bytes([raw[-1] ^ 1]), me.peer_id, until))
    forged = records_pb2.SealedRecord.FromString(raw)
    forged.signature = other.key.sign(forged.sealed)
    assert not guard.validate(dht_record(forged.SerializeToString(), me.peer_id, until))
    far = dataclasses.replace(record, expires_at=time.time() + records.MAX_LIFETIME_S + 3600)
    with pytest.raises(PublicRecordError, match="expires"):
        records.seal_record(me, far, KEY)
    guard.banned = frozenset({me.peer_id})
    assert not guard.validate(dht_record(raw, me.peer_id, until)), "of one that is shut out"
    assert guard.merge_with(RecordGuard())


def test_a_member_refuses_what_was_sealed_with_another_key(tmp_path: Path) -> None:
    me = Identity.load(tmp_path / "me")
    record, another = record_of(me.peer_id), RunKey(b"x" * 32)
    raw = records.seal_record(me, record, another)
    place = DHTID.generate(another.place(me.peer_id)).to_bytes()
    placed = DHTRecord(place, MSGPackSerializer.dumps(me.peer_id), MSGPackSerializer.dumps(raw), record.expires_at)
    assert RecordGuard(another).validate(placed) and RecordGuard().validate(placed)
    assert not RecordGuard(KEY).validate(placed)


def test_a_member_cannot_seal_anothers_record_as_its_own(tmp_path: Path) -> None:
    me, other = Identity.load(tmp_path / "me"), Identity.load(tmp_path / "other")
    record = record_of(other.peer_id)
    signed = records.sign_peer(other, record).SerializeToString()
    key_id = DHTID.generate(KEY.place(me.peer_id)).to_bytes()
    bound = records._bound(key_id, me.peer_id, record.expires_at)
    sealed = KEY.seal(me.peer_id, bound, signed)
    raw = records_pb2.SealedRecord(sealed=sealed, signature=me.key.sign(records._SEALED + bound + sealed))
    with pytest.raises(PublicRecordError, match="under the name of"):
        records.open_sealed(raw.SerializeToString(), key_id, me.peer_id, record.expires_at, KEY)


def signed_bytes(identity: Identity, record: PeerRecord) -> bytes:
    return records.sign_peer(identity, record).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"addresses": WHERE * 17}, "17 addresses"),
        ({"addresses": ("/ip4/999.0.0.1/tcp/1",)}, "999.0.0.1"),
        ({"addresses": ("/ip4/1.2.3.4/tcp/1/evil/x",)}, "unknown protocol 'evil'"),
        ({"capacity": float("nan")}, "the capacity nan is out of range"),
        ({"stage": StageIndex(1024)}, "stage 1024"),
        ({"expires_at": float("inf")}, "expires"),
        ({"run_hash": "zz"}, "not a run hash"),
        ({"version": -2}, "version -2"),
    ],
)
def test_a_record_out_of_bounds_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    me = Identity.load(tmp_path / "me")
    with pytest.raises(PublicRecordError, match=reason):
        signed_bytes(me, record_of(me.peer_id, **changes))


def test_what_is_as_large_as_is_allowed_is_taken_and_one_more_is_not(tmp_path: Path) -> None:
    me = Identity.load(tmp_path / "me")
    record = record_of(me.peer_id, addresses=WHERE * records.MAX_ADDRESSES)
    raw = signed_bytes(me, record)
    filling = records.MAX_RECORD - len(raw) - 3  # an unknown field: its tag, its length in two bytes
    whole = raw + bytes([15 << 3 | 2, filling & 0x7F | 0x80, filling >> 7]) + bytes(filling)
    assert len(whole) == records.MAX_RECORD and open_record(whole) == record
    with pytest.raises(PublicRecordError, match="the record has 4097 bytes; at most 4096"):
        open_record(whole + b"\0")


@given(st.binary(max_size=300))
def test_random_bytes_are_no_record(raw: bytes) -> None:
    with pytest.raises(PublicRecordError):
        open_record(raw)
    with pytest.raises(PublicRecordError):
        open_record(records_pb2.SignedRecord(peer=raw, signature=b"x" * 64).SerializeToString())
    assert not RecordGuard().validate(DHTRecord(b"key", raw, raw, 1.0))
