"""What another node of the DHT sends is bounded before msgpack sees it: the real packets, and many made up ones."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.net import dht_protocol, records
from swarm.net.dht_bounds import BoundedSerializer, OutOfBounds, check
from swarm.net.dht_clock import get_dht_time
from swarm.net.host import Host

Made = Callable[..., Awaitable[Host]]


def nested(depth: int, kind: int = 0x50) -> bytes:
    """Dictionaries (0x50) or tuples (0x40) within each other, as hivemind packs them."""
    raw = msgpack.packb([])
    for _ in range(depth):
        inner = [0, 0.0, [["k", raw, 0.0]]] if kind == 0x50 else [0]
        raw = msgpack.packb(msgpack.ExtType(kind, msgpack.packb(inner) if kind == 0x50 else raw))
    return bytes(raw)


def dictionary_within_dictionary(depth: int) -> bytes:
    """The hook decodes the items of each: this is what recurses."""
    item: Any = 0
    for _ in range(depth):
        item = msgpack.ExtType(0x50, msgpack.packb([10, 0.0, [["k", item, 1.0]]]))
    return bytes(msgpack.packb(item))


ATTACKS = {
    "dictionaries": dictionary_within_dictionary(200),
    "tuples": nested(200, 0x40),
    "many dictionaries": dictionary_within_dictionary(1000),
    "lists": b"\x91" * 3000 + b"\x90",
    "a long list": msgpack.packb([0] * 5000),
    "a list that is only announced": b"\xdd\xff\xff\xff\xff",
    "bytes that are only announced": b"\xc6\xff\xff\xff\xff",
    "a map": msgpack.packb({1: 2}),
    "another extension": msgpack.packb(msgpack.ExtType(0x51, b"")),
    "a megabyte": msgpack.packb(b"x" * (1 << 20)),
    "two values": b"\x01\x02",
    "nothing": b"",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused_without_being_decoded(name: str) -> None:
    with pytest.raises(OutOfBounds):
        BoundedSerializer.loads(ATTACKS[name])


def test_what_nodes_store_is_taken() -> None:
    dictionary = DictionaryDHTValue()
    dictionary.store("12D3KooW" + "x" * 44, b"r" * records.MAX_RECORD, 5.0)
    for value in (b"r" * records.MAX_RECORD, "text", 3, 1.5, None, (1, 2), [1, b"x"], dictionary):
        raw = MSGPackSerializer.dumps(value)
        found = BoundedSerializer.loads(raw)
        assert MSGPackSerializer.dumps(found) == raw


@given(st.binary(max_size=400))
@example(b"\xc7\x00\x50")
@example(b"\xd4\x50\x91")
def test_whatever_passes_is_decoded_without_harm(raw: bytes) -> None:
    """Anything but an exception of msgpack or of ours would be a fault."""
    try:
        check(raw)
    except OutOfBounds:
        return
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        MSGPackSerializer.loads(raw)


_VALUES = st.recursive(
    st.one_of(st.binary(max_size=40), st.text(max_size=10), st.floats(), st.integers(-(2**63), 2**64 - 1), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(lambda items: msgpack.ExtType(0x40, msgpack.packb(items))),
    ),
    max_leaves=40,
)


@given(_VALUES)
def test_what_passes_is_what_msgpack_can_read_whole(value: Any) -> None:
    raw = msgpack.packb(value)
    try:
        check(raw)
    except OutOfBounds as error:
        assert "nested" in str(error) or "items" in str(error)
        return
    MSGPackSerializer.loads(raw)


def store_request(value: bytes, keys: int = 1) -> dht_pb2.StoreRequest:
    request = dht_pb2.StoreRequest()
    for _ in range(keys):
        request.keys.append(DHTID.generate("key").to_bytes())
        request.subkeys.append(DHTProtocol.IS_DICTIONARY)
        request.values.append(value)
        request.expiration_time.append(get_dht_time() + 30)
        request.in_cache.append(False)
    return request


async def lives(host: Host, asking: Host) -> None:
    assert not host.died.done()
    assert await asking.dht.protocol.call_ping(PeerID.from_base58(host.peer_id)) is not None


@pytest.mark.parametrize("name", ["dictionaries", "tuples", "lists", "a long list", "another extension"])
async def test_a_stranger_that_stores_it_is_refused(make_host: Made, name: str) -> None:
    """The real packet: before the bounds it ended the process by SIGSEGV."""
    victim = await make_host()
    stranger = await make_host(await victim.addresses())
    stub = stranger.dht.protocol.get_stub(PeerID.from_base58(victim.peer_id))
    for in_subkey in (False, True):
        request = store_request(ATTACKS[name])
        if in_subkey:
            request.subkeys[0] = ATTACKS[name]
            request.values[0] = MSGPackSerializer.dumps(b"x")
        try:
            assert not any((await stub.rpc_store(request, timeout=60)).store_ok)
        except Exception as error:
            assert "OutOfBounds" in str(error) or "bytes" in str(error) or "nested" in str(error), error
    await lives(victim, stranger)


@pytest.mark.parametrize("name", ["dictionaries", "tuples", "lists", "a long list"])
async def test_a_node_that_answers_with_it_is_not_believed(
    make_host: Made, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = await make_host()
    victim = await make_host(await liar.addresses())
    result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=ATTACKS[name], expiration_time=get_dht_time() + 30)
    lie = dht_pb2.FindResponse(results=[result], peer=liar.dht.protocol.node_info)

    class Lying:
        async def rpc_find(self, request: Any, timeout: float | None = None) -> dht_pb2.FindResponse:
            return lie

    monkeypatch.setattr(DHTProtocol, "get_stub", lambda self, peer: Lying())
    assert await victim.dht.protocol.call_find(PeerID.from_base58(liar.peer_id), [DHTID.generate("key")]) is None
    assert not victim.died.done()


async def test_requests_for_too_many_keys_are_refused(make_host: Made) -> None:
    victim = await make_host()
    stranger = await make_host(await victim.addresses())
    stub = stranger.dht.protocol.get_stub(PeerID.from_base58(victim.peer_id))
    many = [DHTID.generate(str(number)).to_bytes() for number in range(dht_protocol.MAX_FOUND + 1)]
    node = stranger.dht.protocol.node_info
    found = await stub.rpc_find(dht_pb2.FindRequest(keys=many[1:], peer=node), timeout=60)
    assert len(found.results) == dht_protocol.MAX_FOUND, "as many as are allowed are answered"
    with pytest.raises(Exception, match="at most"):
        await stub.rpc_find(dht_pb2.FindRequest(keys=many, peer=stranger.dht.protocol.node_info), timeout=60)
    with pytest.raises(Exception, match="at most"):
        await stub.rpc_store(store_request(b"\x00", keys=dht_protocol.MAX_STORED + 1), timeout=60)
    async with asyncio.timeout(60):
        await lives(victim, stranger)


def test_hivemind_alone_would_end_the_process() -> None:
    """Why there are bounds; should this ever pass, they may go."""
    program = (
        "import sys\nimport hivemind.dht.storage\nfrom hivemind.utils import MSGPackSerializer\n"
        "MSGPackSerializer.loads(bytes.fromhex(sys.stdin.read()))"
    )
    attack = dictionary_within_dictionary(1000).hex()
    done = subprocess.run(
        [sys.executable, "-c", program], input=attack, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode < 0 or "RecursionError" in done.stderr
