"""Signed records in the DHT: who takes part in a run, and where to reach them.

Each is signed with the libp2p key that its peer id is made of, and lies under a key of its own: whoever looks for a
peer is not sent, and does not check, the records of a whole run. Every DHT node checks before it stores or returns
anything (`RecordGuard`): the signature, the bounds, that the record lies under the key and subkey it belongs to, and
that it is not kept alive past its own expiry. Foreign values are refused altogether: this DHT holds nothing else.
A node of the DHT can hide a peer's record from those who ask for it, but it cannot forge one.
"""

from __future__ import annotations

import asyncio
import math
import re
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
from swarm.net.wire import MAX_STAGES
from swarm.protocol.ids import Actor, StageIndex

MAX_RECORD = 4096
MAX_ADDRESSES = 16
MAX_LIFETIME_S = 3600.0
"""A record cannot be stored for longer, so that one signed once does not outlive its peer for ever."""
_TIMEOUT_S = 15.0
_CONTEXT = b"swarm-peer peer record v1\n"
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


async def publish(host: Publisher, record: PeerRecord) -> bool:
    """Store a signed record of this host until it expires; repeat before that. False: nobody took it.

    Raises PublicRecordError when the record is not about this host or out of bounds.
    """
    if record.actor.peer != host.peer_id:
        raise PublicRecordError(f"a record of {record.actor.peer} cannot be signed by {host.peer_id}")
    signed = sign_peer(host.identity, record)
    try:
        async with asyncio.timeout(_TIMEOUT_S):  # a dead daemon would leave the call hanging
            peer, raw = record.actor.peer, signed.SerializeToString()
            return bool(await host.dht.store(_key(record.run_hash, peer), raw, record.expires_at, subkey=peer))
    except TimeoutError:
        return False


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
    """The newest valid record of each of these peers that has one, in peer-id order."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            keys = [_key(run_hash, peer) for peer in peers]
            found = await host.dht.get_many(keys, sufficient_expiration_time=math.inf)
    except TimeoutError:
        return []
    records = []
    for entry in found.values():
        entries = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        for signed in entries.values():
            try:
                record = open_record(signed.value)
            except (PublicRecordError, TypeError):
                continue
            if record.expires_at > get_dht_time():
                records.append(record)
    return sorted(records, key=lambda record: record.actor)


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
    """Lets this node of the DHT store and return nothing but sound records in their right places."""

    def validate(self, record: DHTRecord) -> bool:
        try:
            raw = BoundedSerializer.loads(record.value)
            subkey = BoundedSerializer.loads(record.subkey) if record.subkey else None
            if not isinstance(raw, bytes):
                return False
            opened = open_record(raw)
        except Exception:  # whatever msgpack makes of a stranger's bytes
            return False
        in_place = record.key == DHTID.generate(_key(opened.run_hash, opened.actor.peer)).to_bytes()
        return in_place and subkey == opened.actor.peer and record.expiration_time <= opened.expires_at

    def merge_with(self, other: RecordValidatorBase) -> bool:
        return isinstance(other, RecordGuard)


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


def _key(run_hash: str, peer: str) -> str:
    return f"swarm-peer/{run_hash}/peer/{peer}"


def _hash_bytes(run_hash: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", run_hash):
        raise PublicRecordError(f"{run_hash[:80]!r} is not a run hash (64 hex digits)")
    return bytes.fromhex(run_hash)
