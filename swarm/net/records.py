"""Encrypted records in the DHT: the members of a run and their addresses.

Each peer publishes one record. It is signed with the peer's libp2p key and sealed (encrypted and authenticated) with
the run key, which only invites and members have. It is stored under a DHT key that can be computed only with the run
key. The seal covers this DHT key, the peer id and the expiry time, so nobody can move a record, extend its life or show
it under another name.

Every DHT node checks a record before it stores or returns it (`RecordGuard`). A node with the run key checks
everything. A node without it, such as a plain bootstrap node, checks the size, the expiry and an outer signature of the
peer. It can also check whose the DHT key is (`owns`), because the DHT key is a hash of the peer id and of a secret that
the record reveals. So others cannot take the place of a peer's record. A DHT node can hide a peer's record, but cannot
forge one.
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
from swarm.net.run_key import KEY_BYTES, SEALED_MORE, RunKey, SealError, place_of
from swarm.net.wire_bounds import MAX_STAGES
from swarm.protocol.ids import Actor, StageIndex

MAX_RECORD = 4096
MAX_SEALED = MAX_RECORD + SEALED_MORE + 128
"""Largest size of a sealed record, bytes: the record, the seal, a signature and the framing."""
MAX_ADDRESSES = 16
MAX_LIFETIME_S = 300.0
"""Longest lifetime of a record, seconds, so that no record is shown long after its peer has gone."""
_TIMEOUT_S = 15.0
_CONTEXT = b"swarm-peer peer record v1\n"
_SEALED = b"swarm-peer sealed record v1\n"
_ROLES = {role: link_pb2.Role.Value(f"ROLE_{role.name}") for role in (Role.PEER, Role.COORDINATOR)}
_ROLE_OF = {number: role for role, number in _ROLES.items()}


class PublicRecordError(ValueError):
    """A record is malformed, out of bounds, not validly signed, or stored under the wrong key."""


@dataclass(frozen=True)
class PeerRecord:
    """The content of a peer's record. `expires_at`: Unix seconds; `version`: −1 while the peer has no state."""

    run_hash: str
    actor: Actor
    addresses: tuple[str, ...]
    role: Role
    stage: StageIndex | None
    version: int
    capacity: float
    expires_at: float


class Publisher(Protocol):
    """What this file needs of a libp2p host with a DHT node."""

    identity: Identity
    peer_id: str
    dht: DHTNode
    key: RunKey | None
    """The run key; None: the node belongs to no run."""


async def publish(host: Publisher, record: PeerRecord) -> bool:
    """Store the record of this host in the DHT until it expires; call again before then. False: no node stored it.

    Raises PublicRecordError if the record is of another peer or out of bounds, or if this host has no run key.
    """
    if record.actor.peer != host.peer_id:
        raise PublicRecordError(f"{host.peer_id} cannot publish the record of another peer, {record.actor.peer}")
    if host.key is None:
        raise PublicRecordError("a node without a run key cannot publish a record")
    peer, place = record.actor.peer, host.key.place(record.actor.peer)
    raw = seal_record(host.identity, record, host.key)
    try:
        async with asyncio.timeout(_TIMEOUT_S):  # without a timeout, the call hangs if the daemon is dead
            return bool(await host.dht.store(place, raw, record.expires_at, subkey=peer))
    except TimeoutError:
        return False


def seal_record(identity: Identity, record: PeerRecord, key: RunKey) -> bytes:
    """The sealed record, as it is stored in the DHT. Raises PublicRecordError if it is out of bounds."""
    peer = record.actor.peer
    bound = _bound(DHTID.generate(key.place(peer)).to_bytes(), peer, record.expires_at)
    sealed = key.seal(peer, bound, sign_peer(identity, record).SerializeToString())
    return records_pb2.SealedRecord(
        sealed=sealed, signature=identity.key.sign(_SEALED + bound + sealed), blind=key.blind(peer)
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
    """The newest valid record of each of these peers that has one, sorted by peer id; [] if `host` has no run key."""
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
    """Decrypt and check the record of `peer` that is stored under `key_id` until `expires_at`.

    `key_id`: the DHT's 20-byte hash of the key. Raises PublicRecordError and no other error.
    """
    proto = _sealed(raw)
    try:
        plain = key.open(peer, _bound(key_id, peer, expires_at), proto.sealed)
    except SealError as error:
        raise PublicRecordError(str(error)) from None
    record = open_record(plain)
    if record.actor.peer != peer or record.expires_at != expires_at:
        raise PublicRecordError(f"the record of {record.actor.peer} was stored under the name of {peer[:80]!r}")
    if DHTID.generate(key.place(peer)).to_bytes() != key_id:
        raise PublicRecordError("the record is stored under a wrong DHT key")
    return record


def check_outside(raw: bytes, key_id: bytes, peer: str, expires_at: float) -> None:
    """Check a sealed record as far as possible without the run key. Raises PublicRecordError."""
    proto = _sealed(raw)
    if not expires_at <= get_dht_time() + MAX_LIFETIME_S:
        raise PublicRecordError(f"the expiry time of the record is out of range: {expires_at}")
    if not verify(peer, proto.signature, _SEALED + _bound(key_id, peer, expires_at) + proto.sealed):
        raise PublicRecordError(f"the sealed record of {peer[:80]!r} has an invalid signature")
    if proto.blind and not owns(raw, key_id, peer):
        raise PublicRecordError(f"the sealed record of {peer[:80]!r} does not belong under its DHT key")


def owns(raw: bytes, key_id: bytes, peer: str) -> bool:
    """Whether a sealed record proves that the DHT key `key_id` belongs to `peer`. Raises PublicRecordError.

    Records of release 0.1.0 prove nothing.
    """
    blind = _sealed(raw).blind
    return len(blind) == KEY_BYTES and DHTID.generate(place_of(blind, peer)).to_bytes() == key_id


def open_record(raw: bytes) -> PeerRecord:
    """Decode and verify a signed record. Raises PublicRecordError and no other error."""
    if len(raw) > MAX_RECORD:
        raise PublicRecordError(f"the record has {len(raw)} bytes; at most {MAX_RECORD} are allowed")
    try:
        signed = records_pb2.SignedRecord.FromString(raw)
        body = records_pb2.PeerRecord.FromString(signed.peer)
    except DecodeError as error:
        raise PublicRecordError(f"not a record: {error}") from None
    if not verify(body.peer, signed.signature, _CONTEXT + signed.peer):
        raise PublicRecordError(f"the record of {body.peer[:80]!r} has an invalid signature")
    _check(body)
    if body.role not in _ROLE_OF:
        raise PublicRecordError(f"role {body.role} is unknown")
    stage = StageIndex(body.stage) if body.HasField("stage") else None
    if stage is not None and stage >= MAX_STAGES:
        raise PublicRecordError(f"stage {stage} is out of range")
    if not (math.isfinite(body.capacity) and body.capacity >= 0):
        raise PublicRecordError(f"the capacity {body.capacity} is out of range")
    if body.version < -1:
        raise PublicRecordError(f"version {body.version} is out of range")
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
    """Makes this DHT node store and return only valid records under their right keys.

    `key` None: the node belongs to no run. It accepts records of all runs, and cannot decrypt them.
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
        except Exception:  # msgpack may raise any error on the bytes of a stranger
            return False
        return True

    def merge_with(self, other: RecordValidatorBase) -> bool:
        return isinstance(other, RecordGuard)


def _sealed(raw: bytes) -> records_pb2.SealedRecord:
    if len(raw) > MAX_SEALED:
        raise PublicRecordError(f"the sealed record has {len(raw)} bytes; at most {MAX_SEALED} are allowed")
    try:
        return records_pb2.SealedRecord.FromString(raw)
    except DecodeError as error:
        raise PublicRecordError(f"not a sealed record: {error}") from None


def _bound(key_id: bytes, peer: str, expires_at: float) -> bytes:
    return key_id + struct.pack(">d", expires_at) + peer.encode()


def _check(body: records_pb2.PeerRecord) -> None:
    if len(body.run_hash) != 32:
        raise PublicRecordError(f"the run hash has {len(body.run_hash)} bytes; it must have 32")
    if len(body.addresses) > MAX_ADDRESSES:
        raise PublicRecordError(f"the record has {len(body.addresses)} addresses; at most {MAX_ADDRESSES} are allowed")
    if not body.expires_at <= get_dht_time() + MAX_LIFETIME_S:  # also true for NaN
        raise PublicRecordError(
            f"the record expires at {body.expires_at}, which is more than {MAX_LIFETIME_S:g} s from now"
        )
    if body.incarnation >= 2**63:
        raise PublicRecordError(f"the incarnation {body.incarnation} is out of range")
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
