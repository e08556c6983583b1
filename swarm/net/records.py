"""Sealed records in the DHT: who takes part in a run, and where to reach them.

A record is signed with the libp2p key that its peer id is made of, and sealed with the run key, which only invites and
members have. It lies under a DHT key of its own, which nobody can name without the run key. The seal binds it to that
key, to the peer id and to its expiry: it cannot be moved, kept alive or shown under another name.

Every DHT node checks before it stores or returns anything (`RecordGuard`). One with the run key checks everything. One
without it, such as a bare bootstrap node, checks the size, the expiry and an outer signature of the peer. A node of the
DHT can hide a peer's record from those who ask for it, but it cannot forge one.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, cast

from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from swarm.net import addresses
from swarm.net.dht_bounds import BoundedSerializer
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Role
from swarm.net.identity import Identity, IdentityError, peer_id_bytes, verify
from swarm.net.proto import link_pb2, records_pb2
from swarm.net.run_key import SEALED_MORE, RunKey, SealError
from swarm.net.wire_bounds import MAX_STAGES
from swarm.protocol.ids import Actor, StageIndex

MAX_RECORD = 4096
MAX_SEALED = MAX_RECORD + SEALED_MORE + 128
"""Bytes of a sealed record: beside the record, a signature and the framing."""
MAX_ADDRESSES = 16
MAX_LIFETIME_S = 300.0
"""A record cannot be stored for longer, so that one signed once does not outlive its peer for ever."""
_TIMEOUT_S = 15.0
_CONTEXT = b"swarm-peer peer record v1\n"
_SEALED = b"swarm-peer sealed record v1\n"
_ROLES = {role: link_pb2.Role.Value(f"ROLE_{role.name}") for role in (Role.PEER, Role.COORDINATOR)}
_ROLE_OF = {number: role for role, number in _ROLES.items()}


class PublicRecordError(ValueError):
    """A record that is malformed, out of bounds, badly signed or in the wrong place."""


@dataclass(frozen=True)
class PeerRecord:
    """What a peer says about itself. `expires_at` is in Unix seconds; `version` is −1 while it holds no state."""

    run_hash: str
    actor: Actor
    addresses: tuple[str, ...]
    role: Role
    stage: StageIndex | None
    version: int
    capacity: float
    expires_at: float


class Publisher(Protocol):
    """A libp2p host with a node of the DHT, as its records see it."""

    identity: Identity
    peer_id: str
    dht: DHTNode
    key: RunKey | None
    """None: a node that belongs to no run."""


async def publish(host: Publisher, record: PeerRecord) -> bool:
    """Store a sealed record of this host until it expires; repeat before that. False: nobody took it.

    Raises PublicRecordError when the record is not about this host or out of bounds, or this host has no run key.
    """
    if record.actor.peer != host.peer_id:
        raise PublicRecordError(f"a record of {record.actor.peer} cannot be signed by {host.peer_id}")
    if host.key is None:
        raise PublicRecordError("a node without a run key publishes nothing")
    peer, place = record.actor.peer, host.key.place(record.actor.peer)
    raw = seal_record(host.identity, record, host.key)
    try:
        async with asyncio.timeout(_TIMEOUT_S):  # a dead daemon would leave the call hanging
            return bool(await host.dht.store(place, raw, record.expires_at, subkey=peer))
    except TimeoutError:
        return False


def seal_record(identity: Identity, record: PeerRecord, key: RunKey) -> bytes:
    """The record as it lies in the DHT. Raises PublicRecordError when it is out of bounds."""
    peer = record.actor.peer
    bound = _bound(DHTID.generate(key.place(peer)).to_bytes(), peer, record.expires_at)
    sealed = key.seal(peer, bound, sign_peer(identity, record).SerializeToString())
    return records_pb2.SealedRecord(
        sealed=sealed, signature=identity.key.sign(_SEALED + bound + sealed)
    ).SerializeToString()


def sign_peer(identity: Identity, record: PeerRecord) -> records_pb2.SignedRecord:
    """The record signed with a peer's key. Raises PublicRecordError when it is out of bounds."""
    body = records_pb2.PeerRecord(
        run_hash=_hash_bytes(record.run_hash),
        peer=record.actor.peer,
        incarnation=record.actor.incarnation,
        addresses=record.addresses,
        role=cast(link_pb2.Role, _ROLES[record.role]),
        stage=record.stage,
        version=record.version,
        capacity=record.capacity,
        expires_at=record.expires_at,
    ).SerializeToString()
    signed = records_pb2.SignedRecord(peer=body, signature=identity.key.sign(_CONTEXT + body))
    open_record(signed.SerializeToString())
    return signed


async def lookup(host: Publisher, run_hash: str, peers: Collection[str]) -> list[PeerRecord]:
    """The newest valid record of each of these peers that has one, in peer-id order. None without a run key."""
    if host.key is None:
        return []
    places = {host.key.place(peer): peer for peer in peers}
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            found = await host.dht.get_many(list(places), sufficient_expiration_time=math.inf)
    except TimeoutError:
        return []
    records = []
    for place, entry in found.items():
        entries = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        stored = entries.get(places[place])
        if stored is None:
            continue
        try:
            key_id = DHTID.generate(place).to_bytes()
            record = open_sealed(stored.value, key_id, places[place], stored.expiration_time, host.key)
        except (PublicRecordError, TypeError):
            continue
        if record.run_hash == run_hash and record.expires_at > get_dht_time():
            records.append(record)
    return sorted(records, key=lambda record: record.actor)


def open_sealed(raw: bytes, key_id: bytes, peer: str, expires_at: float, key: RunKey) -> PeerRecord:
    """The record of `peer` that lies under `key_id` until `expires_at`. Raises PublicRecordError; never anything else.

    `key_id`: the 20 bytes that the DHT makes of a key.
    """
    proto = _sealed(raw)
    try:
        plain = key.open(peer, _bound(key_id, peer, expires_at), proto.sealed)
    except SealError as error:
        raise PublicRecordError(str(error)) from None
    record = open_record(plain)
    if record.actor.peer != peer or record.expires_at != expires_at:
        raise PublicRecordError(f"a record of {record.actor.peer} under the name of {peer[:80]!r}")
    if DHTID.generate(key.place(peer)).to_bytes() != key_id:
        raise PublicRecordError("a record in another place than its own")
    return record


def check_outside(raw: bytes, key_id: bytes, peer: str, expires_at: float) -> None:
    """What can be checked without the run key. Raises PublicRecordError."""
    proto = _sealed(raw)
    if not expires_at <= get_dht_time() + MAX_LIFETIME_S:
        raise PublicRecordError(f"a record that expires at {expires_at}")
    if not verify(peer, proto.signature, _SEALED + _bound(key_id, peer, expires_at) + proto.sealed):
        raise PublicRecordError(f"a sealed record of {peer[:80]!r} with a bad signature")


def open_record(raw: bytes) -> PeerRecord:
    """The record in signed bytes. Raises PublicRecordError; never anything else."""
    if len(raw) > MAX_RECORD:
        raise PublicRecordError(f"a record of {len(raw)} bytes; at most {MAX_RECORD} are taken")
    try:
        signed = records_pb2.SignedRecord.FromString(raw)
        body = records_pb2.PeerRecord.FromString(signed.peer)
    except DecodeError as error:
        raise PublicRecordError(f"not a record: {error}") from None
    if not verify(body.peer, signed.signature, _CONTEXT + signed.peer):
        raise PublicRecordError(f"a record of {body.peer[:80]!r} with a bad signature")
    _check(body)
    if body.role not in _ROLE_OF:
        raise PublicRecordError(f"role {body.role} is unknown")
    stage = StageIndex(body.stage) if body.HasField("stage") else None
    if stage is not None and stage >= MAX_STAGES:
        raise PublicRecordError(f"stage {stage} is out of range")
    if not (math.isfinite(body.capacity) and body.capacity >= 0):
        raise PublicRecordError(f"a capacity of {body.capacity}")
    if body.version < -1:
        raise PublicRecordError(f"version {body.version}")
    return PeerRecord(
        run_hash=body.run_hash.hex(),
        actor=Actor(body.peer, body.incarnation),
        addresses=tuple(body.addresses),
        role=_ROLE_OF[body.role],
        stage=stage,
        version=body.version,
        capacity=body.capacity,
        expires_at=body.expires_at,
    )


class RecordGuard(RecordValidatorBase):
    """Lets this node of the DHT store and return nothing but sound records in their right places.

    `key` None: the node belongs to no run. It takes the records of any, and cannot read them.
    """

    def __init__(self, key: RunKey | None = None) -> None:
        self.key = key
        self.banned: frozenset[str] = frozenset()
        """Peer ids that this node does not serve."""

    def validate(self, record: DHTRecord) -> bool:
        try:
            raw = BoundedSerializer.loads(record.value)
            subkey = BoundedSerializer.loads(record.subkey) if record.subkey else None
            if not isinstance(raw, bytes) or not isinstance(subkey, str) or subkey in self.banned:
                return False
            if self.key is not None:
                open_sealed(raw, record.key, subkey, record.expiration_time, self.key)
            check_outside(raw, record.key, subkey, record.expiration_time)
        except Exception:  # whatever msgpack makes of a stranger's bytes
            return False
        return True

    def merge_with(self, other: RecordValidatorBase) -> bool:
        return isinstance(other, RecordGuard)


def _sealed(raw: bytes) -> records_pb2.SealedRecord:
    if len(raw) > MAX_SEALED:
        raise PublicRecordError(f"a sealed record of {len(raw)} bytes; at most {MAX_SEALED} are taken")
    try:
        return records_pb2.SealedRecord.FromString(raw)
    except DecodeError as error:
        raise PublicRecordError(f"not a sealed record: {error}") from None


def _bound(key_id: bytes, peer: str, expires_at: float) -> bytes:
    return key_id + struct.pack(">d", expires_at) + peer.encode()


def _check(body: records_pb2.PeerRecord) -> None:
    if len(body.run_hash) != 32:
        raise PublicRecordError(f"a run hash of {len(body.run_hash)} bytes; it has 32")
    if len(body.addresses) > MAX_ADDRESSES:
        raise PublicRecordError(f"{len(body.addresses)} addresses; at most {MAX_ADDRESSES} are taken")
    if not body.expires_at <= get_dht_time() + MAX_LIFETIME_S:  # also when it is not a number
        raise PublicRecordError(
            f"a record that expires at {body.expires_at}; at most {MAX_LIFETIME_S:g} s ahead are taken"
        )
    if body.incarnation >= 2**63:
        raise PublicRecordError(f"{body.incarnation} is not an incarnation")
    try:
        peer_id_bytes(body.peer)
        for address in body.addresses:
            addresses.components(address)
    except (IdentityError, addresses.AddressError) as error:
        raise PublicRecordError(str(error)) from None


def _hash_bytes(run_hash: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", run_hash):
        raise PublicRecordError(f"{run_hash[:80]!r} is not a run hash (64 hex digits)")
    return bytes.fromhex(run_hash)
