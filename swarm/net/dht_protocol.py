"""The protocol of the DHT nodes: which requests a node answers, and which records it stores.

A node with the run key answers only members of its run: each request must contain the sender's token, and is refused
without it, before the request is decoded. A node without the run key, such as a plain bootstrap node, answers all
senders, names no other nodes in its answers, and limits what it stores.

A node stores a record only if the peer that the record describes sends it. hivemind's nodes copy their records to each
node that they meet; here they do not, because each peer publishes its record again every few seconds. A record that
proves that its DHT key belongs to its peer is stored whatever else is stored under this key. The id of a node is
derived from its peer id, so a node cannot choose its place in the DHT.

Importing this module makes hivemind's DHT use this protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import hivemind.dht.node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2

from swarm.net.dht_bounds import BoundedSerializer, OutOfBounds
from swarm.net.dht_clock import get_dht_time
from swarm.net.records import RecordGuard, owns

MAX_STORED = 4
"""Largest number of keys in a store request; a peer has one record, so one key is usual."""
MAX_FOUND = 64
"""Largest number of keys in a find request. The answer names at most twenty nodes for each key."""
MAX_NEAREST = 64
"""Largest number of nodes that are read from an answer for one key."""
MAX_KEPT = 4096
"""Largest number of DHT keys under which a node stores records."""
KEPT_OF_ONE = 2
"""Largest number of stored records of one sender: one for its current run, and one for an earlier run that has not
expired.
"""
OWNERS_OF_ONE = 4
"""Largest number of senders that have a record under the same key. One place is for a record that proves that the key
belongs to its sender (`records.owns`).
"""
MAX_NODES = 4096
"""Largest number of nodes in the routing table."""
RATE = 20.0
"""Requests per second of one sender, on average."""
BURST = 200.0
MAX_SENDERS = 4096
"""Largest number of senders whose requests are counted; beyond it, the least recently active sender is forgotten."""
NOT_FOR_YOU = "this node answers only members of its run"


class NotAdmitted(Exception):
    """The sender has no valid token of this run, or is banned."""

    def __init__(self) -> None:
        super().__init__(NOT_FOR_YOU)


class TooMany(Exception):
    """The sender has exceeded its request rate."""


def node_id_of(peer: PeerID) -> bytes:
    """The id (20 bytes) of the DHT node that a peer runs."""
    return hashlib.sha1(b"swarm-peer node v1\n" + peer.to_bytes(), usedforsecurity=False).digest()


class Allowance:
    """Limits the requests of each sender: RATE per second on average, BURST at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """For each sender, (remaining requests, time of that count)."""

    def take(self, sender: str) -> None:
        """Count one request of a sender. Raises TooMany above its limit."""
        now = self._clock()
        left, at = self._left.pop(sender, (BURST, now))
        left = min(BURST, left + (now - at) * RATE)
        while len(self._left) >= MAX_SENDERS:
            del self._left[next(iter(self._left))]
        self._left[sender] = max(0.0, left - 1), now
        if left < 1:
            raise TooMany("too many requests: try again later")


class SwarmProtocol(DHTProtocol):
    """hivemind's DHT protocol with the rules of this file."""

    serializer = BoundedSerializer
    record_validator: RecordGuard

    def __init__(self, *, _initialized_with_create: bool = False) -> None:
        super().__init__(_initialized_with_create=_initialized_with_create)
        self._allowance = Allowance()
        self._kept: dict[str, dict[DHTID, float]] = {}
        """For each sender, the keys of its stored records, with their expiry times."""

    def get_stub(self, peer: PeerID) -> Any:
        return _Stub(super().get_stub(peer), peer, self.record_validator, self.p2p.peer_id)

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        await self._admit(request, context.remote_id)
        return dht_pb2.PingResponse(peer=self.node_info, dht_time=get_dht_time(), available=False)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        sender = await self._admit(request, context.remote_id)
        _count(request.keys, MAX_STORED)
        for each in (request.subkeys, request.values, request.expiration_time, request.in_cache):
            if len(each) != len(request.keys):
                raise OutOfBounds("the lists of a store request differ in length")
        records = zip(
            request.keys, request.subkeys, request.values, request.expiration_time, request.in_cache, strict=True
        )
        stored = [not in_cache and self._keep(sender, *record) for *record, in_cache in records]
        return dht_pb2.StoreResponse(store_ok=stored, peer=self.node_info)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        await self._admit(request, context.remote_id)
        _count(request.keys, MAX_FOUND)
        asking = DHTID.from_bytes(node_id_of(context.remote_id))
        return dht_pb2.FindResponse(
            results=[self._found(DHTID.from_bytes(key), asking) for key in request.keys], peer=self.node_info
        )

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Add a node that was met, or remove one that has not answered. Unlike hivemind, send nothing to that node."""
        table = self.routing_table
        if not responded:
            known = node_id if node_id is not None else table.get(peer_id=peer_id)
            if known is not None and known in table:
                del table[known]
            return
        if node_id is None or node_id.to_bytes() != node_id_of(peer_id):
            return
        if node_id not in table and len(table.uid_to_peer_id) >= MAX_NODES:
            return
        silent = table.add_or_update_node(node_id, peer_id)
        if silent is not None:
            self._ping_soon(silent[1])

    def _ping_soon(self, peer: PeerID) -> None:
        asyncio.get_running_loop().create_task(self.call_ping(peer))

    async def _admit(self, request: Any, remote: PeerID) -> str:
        """Check that the sender may send this request; returns its peer id.

        Raises NotAdmitted, TooMany, OutOfBounds.
        """
        sender: str = remote.to_base58()
        guard = self.record_validator
        if guard.key is not None and not guard.key.admits(sender, request.auth.signature):
            raise NotAdmitted
        if sender in guard.banned:
            raise NotAdmitted
        self._allowance.take(sender)
        node_id = request.peer.node_id
        if node_id:
            if node_id != node_id_of(remote):
                raise OutOfBounds("the node id in the request does not match the sender's peer id")
            await self.update_routing_table(DHTID.from_bytes(node_id), remote)
        return sender

    def _keep(self, sender: str, key: bytes, tag: bytes, value: bytes, expires_at: float) -> bool:
        """Store a record if it describes its sender and is within the limits; returns whether it was stored."""
        if BoundedSerializer.loads(tag) != sender or not self._validate_record(key, tag, value, expires_at):
            return False
        key_id, now = DHTID.from_bytes(key), get_dht_time()
        mine = {kept: until for kept, until in self._kept.pop(sender, {}).items() if until > now}
        room = key_id in mine or (
            len(mine) < KEPT_OF_ONE
            and len(self.storage) < MAX_KEPT
            and (self._owners(key_id) < OWNERS_OF_ONE - 1 or self._proves(value, key, sender))
        )
        stored = room and self.storage.store_subkey(key_id, sender, value, expires_at)
        if stored:
            mine[key_id] = expires_at
        if mine:
            self._kept[sender] = mine
        if len(self._kept) > 2 * MAX_KEPT:
            self._kept = {peer: kept for peer, kept in self._kept.items() if max(kept.values()) > now}
        return bool(stored)

    @staticmethod
    def _proves(value: bytes, key: bytes, sender: str) -> bool:
        raw = BoundedSerializer.loads(value)
        return isinstance(raw, bytes) and owns(raw, key, sender)

    def _owners(self, key: DHTID) -> int:
        """Number of peers with a record under this key.

        Only a node without the run key can have more than one, because it cannot check which peer a key belongs to.
        """
        item = self.storage.get(key)
        return len(item.value) if item is not None and isinstance(item.value, DictionaryDHTValue) else 0

    def _found(self, key: DHTID, asking: DHTID) -> dht_pb2.FindResult:
        item = self.storage.get(key)
        if item is not None and isinstance(item.value, DictionaryDHTValue):
            result = dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY,
                value=self.serializer.dumps(item.value),
                expiration_time=item.expiration_time,
            )
        else:
            result = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)
        if self.record_validator.key is not None:
            for node_id, peer in self.routing_table.get_nearest_neighbors(key, k=self.bucket_size, exclude=asking):
                result.nearest_node_ids.append(node_id.to_bytes())
                result.nearest_peer_ids.append(peer.to_bytes())
        return result


class _Stub:
    """Sends requests to another node with the token of this node, rejects answers with more entries than were
    requested, and removes invalid records from answers.
    """

    def __init__(self, stub: Any, peer: PeerID, guard: RecordGuard, me: PeerID) -> None:
        self._stub = stub
        self._node_id = node_id_of(peer)
        self._guard = guard
        self._token = b"" if guard.key is None else guard.key.token(me.to_base58())

    async def rpc_ping(self, request: dht_pb2.PingRequest, timeout: float | None = None) -> dht_pb2.PingResponse:
        return self._checked(await self._stub.rpc_ping(self._signed(request), timeout=timeout))

    async def rpc_store(self, request: dht_pb2.StoreRequest, timeout: float | None = None) -> dht_pb2.StoreResponse:
        response = self._checked(await self._stub.rpc_store(self._signed(request), timeout=timeout))
        _count(response.store_ok, len(request.keys))
        return response

    async def rpc_find(self, request: dht_pb2.FindRequest, timeout: float | None = None) -> dht_pb2.FindResponse:
        response = self._checked(await self._stub.rpc_find(self._signed(request), timeout=timeout))
        _count(response.results, len(request.keys))
        for key, result in zip(request.keys, response.results, strict=False):
            self._drop_invalid(key, result)
            named = list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False))[:MAX_NEAREST]
            true = [(node, peer) for node, peer in named if node == node_id_of(PeerID(peer))]
            del result.nearest_node_ids[:], result.nearest_peer_ids[:]
            result.nearest_node_ids.extend(node for node, _ in true)
            result.nearest_peer_ids.extend(peer for _, peer in true)
        return response

    def _drop_invalid(self, key: bytes, result: dht_pb2.FindResult) -> None:
        """Remove invalid records from an answer.

        hivemind ignores a whole answer with an invalid record. But a node without the run key may have records of
        strangers under the same key, so one stranger could hide the record of a member.
        """
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return
        found, valid = BoundedSerializer.loads(result.value), DictionaryDHTValue()
        if not isinstance(found, DictionaryDHTValue):
            raise OutOfBounds("an answer contains something else than a dictionary of records")
        for subkey, (value, expires_at) in found.items():
            if self._guard.validate(DHTRecord(key, BoundedSerializer.dumps(subkey), value, expires_at)):
                valid.store(subkey, value, expires_at)
        if valid:
            result.value, result.expiration_time = BoundedSerializer.dumps(valid), valid.latest_expiration_time
        else:
            result.type = dht_pb2.NOT_FOUND

    def _signed(self, request: Any) -> Any:
        request.auth.signature = self._token
        return request

    def _checked(self, response: Any) -> Any:
        if response.peer.node_id and response.peer.node_id != self._node_id:
            raise OutOfBounds("the node id in an answer does not match the peer id of the answering node")
        return response


def _count(things: Sequence[object], most: int) -> None:
    if len(things) > most:
        raise OutOfBounds(f"the message has {len(things)} entries; at most {most} are allowed")


SwarmProtocol.__name__ = DHTProtocol.__name__  # other nodes call the protocol by this name
hivemind.dht.node.DHTProtocol = SwarmProtocol
