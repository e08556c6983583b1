"""The address book: coordinators tell members the addresses of other members, over authenticated streams.

A member sends a coordinator its signed record with all its addresses, including those of its local network, and asks
for the records of the peers that it needs. So two peers in one household reach each other directly, and the DHT
contains no private addresses. Records that no coordinator knows are looked up in the DHT.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from swarm.net.bulk import ADDRESSES, BulkError, Transfer
from swarm.net.daemon import DialError
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Refused
from swarm.net.proto import records_pb2
from swarm.net.records import MAX_RECORD, PeerRecord, PublicRecordError, open_record
from swarm.net.stream import StreamClosed
from swarm.net.wire_bounds import WireError
from swarm.protocol.ids import Actor

MAX_ASKED = 32
"""Maximum number of peers in one question."""
MAX_KEPT = 1 << 14
"""Maximum number of records that a coordinator keeps; more members than that may join."""
_ANSWER_S = 5.0
"""Seconds within which a coordinator must answer."""
_MOMENT_S = 0.3
"""Seconds that the other coordinators have once one has answered."""
_MAX_ANSWER = MAX_ASKED * (MAX_RECORD + 8)
_FAILURES = (BulkError, DialError, Refused, StreamClosed, WireError, TimeoutError)


class Fetcher(Protocol):
    async def fetch(self, who: Actor | str, request: bytes, max_bytes: int) -> Transfer: ...


class AddressBook:
    """The newest record of each member, as one coordinator knows it. `clock` gives Unix seconds."""

    def __init__(self, run_hash: str, clock: Callable[[], float] = get_dht_time) -> None:
        self._run_hash = run_hash
        self._clock = clock
        self._records: dict[str, tuple[PeerRecord, bytes]] = {}
        """The records by peer id. The one that was updated longest ago comes first."""

    def note(self, sender: str, raw: bytes) -> None:
        """Store a member's record. Raises PublicRecordError."""
        record = open_record(raw)
        if record.actor.peer != sender or record.run_hash != self._run_hash:
            raise PublicRecordError("this is the record of another peer or run")
        known = self._records.get(sender)
        if known is not None and (known[0].actor, known[0].expires_at) > (record.actor, record.expires_at):
            return  # a newer record has arrived earlier
        self._records.pop(sender, None)
        while len(self._records) >= MAX_KEPT:
            del self._records[next(iter(self._records))]
        self._records[sender] = record, raw

    def find(self, peers: Collection[str]) -> list[PeerRecord]:
        """Return the unexpired records of these peers."""
        return [record for record, _ in self._valid(peers)]

    def answer(self, requester: Actor, request: bytes) -> Transfer:
        """The answer to a member's question. Raises BulkError."""
        try:
            query = records_pb2.AddressQuery.FromString(request.removeprefix(ADDRESSES))
            if len(query.peers) > MAX_ASKED:
                raise BulkError(f"{len(query.peers)} peers are asked for; at most {MAX_ASKED} are allowed")
            if query.record:
                self.note(requester.peer, query.record)
        except (DecodeError, PublicRecordError) as error:
            raise BulkError(f"not a question for addresses: {error}") from None
        found = records_pb2.AddressAnswer(records=[raw for _, raw in self._valid(set(query.peers))])
        return Transfer.of(found.SerializeToString())

    def _valid(self, peers: Collection[str]) -> list[tuple[PeerRecord, bytes]]:
        now = self._clock()
        known = [self._records[peer] for peer in peers if peer in self._records]
        return [(record, raw) for record, raw in known if record.expires_at > now]


async def ask(
    network: Fetcher, coordinators: Sequence[Actor], run_hash: str, own: bytes, peers: Sequence[str]
) -> tuple[frozenset[Actor], list[PeerRecord]]:
    """Send coordinators this process's record, and ask for the records of `peers`. Returns the coordinators that
    answered, and the records found.

    `own`: a serialized SignedRecord; empty: nothing has changed. `peers`: at most MAX_ASKED.
    """
    query = ADDRESSES + records_pb2.AddressQuery(record=own, peers=peers).SerializeToString()
    answers = await _answers([_asked(network, coordinator, query) for coordinator in coordinators])
    newest: dict[str, PeerRecord] = {}
    for raw in (raw for answer in answers if answer is not None for raw in answer):
        try:
            record = open_record(raw)
        except PublicRecordError:
            continue
        known = newest.get(record.actor.peer)
        wanted = record.run_hash == run_hash and record.actor.peer in peers
        if wanted and (known is None or _age(known) < _age(record)):
            newest[record.actor.peer] = record
    answered = frozenset(actor for actor, answer in zip(coordinators, answers, strict=True) if answer is not None)
    return answered, sorted(newest.values(), key=lambda record: record.actor)


async def _answers(asked: Sequence[Coroutine[Any, Any, Sequence[bytes] | None]]) -> list[Sequence[bytes] | None]:
    """Return each coordinator's answer. Once one has answered, the others have a moment: they may be gone or
    unreachable.
    """
    tasks = {asyncio.create_task(each): place for place, each in enumerate(asked)}
    answers: list[Sequence[bytes] | None] = [None] * len(tasks)
    open_, patience_s = set(tasks), None
    try:
        while open_:
            done, open_ = await asyncio.wait(open_, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                answers[tasks[task]] = task.result()
                if task.result() is not None:
                    patience_s = _MOMENT_S
    finally:
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
    return answers


def _age(record: PeerRecord) -> tuple[int, float]:
    return record.actor.incarnation, record.expires_at if math.isfinite(record.expires_at) else 0.0


async def _asked(network: Fetcher, coordinator: Actor, query: bytes) -> Sequence[bytes] | None:
    """Ask one coordinator. None: it did not answer."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            transfer = await network.fetch(coordinator, query, _MAX_ANSWER)
            return records_pb2.AddressAnswer.FromString(bytes(await transfer.read())).records[:MAX_ASKED]
    except (*_FAILURES, DecodeError):
        return None
