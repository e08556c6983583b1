"""Bulk transfers and the manifest: announced sizes, in-band errors, what guests may ask, forged answers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from endless_transfer import NBYTES, EndlessTransfer

from swarm.manifest import DataSection, ManifestError, RunManifest, Shard, SignedManifest, key_fingerprint
from swarm.net import bulk
from swarm.net.bulk import MAX_CHUNK, PROTOCOL, Answers, BulkError, TooSlow, Transfer, fetch_certificate, fetch_manifest
from swarm.net.door import Door
from swarm.net.handshake import Admission, Channel, Introduction, Refused, Role, introduce
from swarm.net.host import DialError, Host
from swarm.net.passes import Pass, Ticket
from swarm.net.proto import link_pb2
from swarm.net.stream import Stream, StreamClosed
from swarm.protocol.ids import Actor

Pair = Any
RUN = "ab" * 32
DEADLINE_S = 60.0


def make_manifest(key: Ed25519PrivateKey) -> SignedManifest:
    shard = (Shard(file="train.bin", sha256="0" * 64, tokens=100_000),)
    data = DataSection(
        tokenizer_sha256="1" * 64, vocab_size=4096, train=shard, heldout=shard, unigram_entropy=7.0, bytes_per_token=3.5
    )
    return SignedManifest.sign(RunManifest(data=data), key)


async def test_a_transfer_arrives_whole_and_is_counted(pair: Pair) -> None:
    a, b = await pair.start()
    state = bytes(range(256)) * 40_000  # 10 MB: several chunks
    asked: list[tuple[Actor, bytes]] = []

    async def handler(requester: Actor, request: bytes) -> Transfer:
        asked.append((requester, request))
        return Transfer.of(state)

    b.bulk.serve(handler)
    transfer = await a.bulk.fetch(b.me, b"state 7")
    assert transfer.total == len(state)
    assert await transfer.read() == state
    assert asked == [(a.me, b"state 7")]
    assert (await (await a.bulk.fetch(b.me.peer, b"any incarnation")).read()) == state
    assert a.traffic.total().received["bulk"] >= 2 * len(state)
    await pair.two.until(lambda: b.traffic.total().sent["bulk"] >= 2 * len(state))


async def test_an_answer_that_is_passed_on_is_let_go_when_its_asker_has_gone() -> None:
    class Gone:
        async def write_frame(self, *_: object) -> None:
            raise StreamClosed("gone")

    async def never_asked_for() -> AsyncGenerator[bytes, None]:
        yield b"x"

    let_go: list[bool] = []
    transfer = Transfer(1, never_asked_for(), abandon=lambda: let_go.append(True))
    lane: Any = SimpleNamespace(piece=MAX_CHUNK)
    with pytest.raises(StreamClosed):
        await bulk._send(Gone(), transfer, lane)  # type: ignore[arg-type]
    assert let_go == [True]


async def test_a_transfer_of_nothing_is_a_transfer(pair: Pair) -> None:
    a, b = await pair.start()

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer.of(b"")

    b.bulk.serve(handler)
    assert await (await a.bulk.fetch(b.me, b"nothing")).read() == b""


async def chunks(sizes: list[int], fault: Exception | None = None) -> AsyncGenerator[bytes, None]:
    for size in sizes:
        yield bytes(size)
    if fault is not None:
        raise fault


@pytest.mark.parametrize(
    ("total", "sizes", "fault", "reason"),
    [
        (100, [50], BulkError("the shard is gone"), "the shard is gone"),
        (100, [50], OSError("disk error"), "OSError: disk error"),
        (100, [50], None, "ended after 50 of 100 bytes"),
        (100, [50, 51], None, "longer than the announced 100 bytes"),
    ],
)
async def test_an_error_half_way_is_told_in_band(
    pair: Pair, total: int, sizes: list[int], fault: Exception | None, reason: str
) -> None:
    a, b = await pair.start()

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer(total, chunks(sizes, fault))

    b.bulk.serve(handler)
    transfer = await a.bulk.fetch(b.me, b"x")
    with pytest.raises(BulkError, match=reason):
        await transfer.read()


async def test_a_request_can_be_refused_by_name_and_an_announcement_over_the_limit_is(pair: Pair) -> None:
    a, b = await pair.start()
    with pytest.raises(BulkError, match="serves only the manifest"):
        await a.bulk.fetch(b.me, b"state")

    async def handler(_requester: Actor, request: bytes) -> Transfer:
        if request == b"state 3":
            raise BulkError("I hold version 4")
        return Transfer(1 << 60, chunks([]))

    b.bulk.serve(handler)
    with pytest.raises(BulkError, match="I hold version 4"):
        await a.bulk.fetch(b.me, b"state 3")
    with pytest.raises(BulkError, match=f"{1 << 60} bytes; at most 1000"):
        await a.bulk.fetch(b.me, b"state 4", max_bytes=1000)


async def test_a_donor_that_vanishes_breaks_the_transfer(pair: Pair) -> None:
    a, b = await pair.start()
    stalled = asyncio.Event()

    async def stall() -> AsyncGenerator[bytes, None]:
        yield bytes(1000)
        await stalled.wait()

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer(2000, stall())

    b.bulk.serve(handler)
    transfer = await a.bulk.fetch(b.me, b"x")
    assert len(await anext(transfer.chunks)) == 1000
    await pair.cut()
    with pytest.raises(BulkError, match="broke off after 1000 of 2000 bytes"):
        await anext(transfer.chunks)


async def test_an_asker_that_takes_nothing_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await pair.start()
    # from the first chunk on: the request itself may be late
    endless = EndlessTransfer(1 << 20, lambda: monkeypatch.setattr(bulk, "IDLE_TIMEOUT_S", 0.2))
    b.bulk.serve(endless.handler)
    transfer = await a.bulk.fetch(b.me, b"x", max_bytes=NBYTES)
    async with asyncio.timeout(DEADLINE_S):
        await endless.ended.wait()
        with pytest.raises(BulkError, match="the transfer broke off after"):
            async for _ in transfer.chunks:
                pass


async def test_a_donor_that_only_drips_is_given_up(pair: Pair) -> None:
    """It is never silent for long."""
    a, b = await pair.start()

    async def drips() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x"
            await asyncio.sleep(0.02)

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer(1 << 20, drips())

    b.bulk.serve(handler)
    stream = await a._dialler.open(b.me.peer, b.me.incarnation, Channel.BULK)
    transfer = await bulk.request(stream, b"x", idle_timeout=1.0, least_rate=1000.0)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TooSlow, match=r"of 1048576 bytes in 1 s; the lowest accepted rate is 1000"):
            await transfer.read()


async def test_an_answer_in_tiny_frames_is_given_up(pair: Pair) -> None:
    """Each frame costs the receiver as much time as 10 kB, so the least rate alone does not bound the cost."""
    a, b = await pair.start()

    async def crumbs(size: int) -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(size)

    async def handler(_requester: Actor, request: bytes) -> Transfer:
        return Transfer(1 << 18, crumbs(int(request)))

    b.bulk.serve(handler)
    async with asyncio.timeout(DEADLINE_S):
        assert len(await (await a.bulk.fetch(b.me, b"512")).read()) == 1 << 18
        with pytest.raises(BulkError, match="frames, which are too small"):
            await (await a.bulk.fetch(b.me, b"128")).read()


async def test_time_in_which_nobody_reads_is_not_the_donors(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await pair.start()

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer.of(bytes(3 * MAX_CHUNK))

    b.bulk.serve(handler)
    stream = await a._dialler.open(b.me.peer, b.me.incarnation, Channel.BULK)
    transfer = await bulk.request(stream, b"x", idle_timeout=DEADLINE_S, least_rate=2**40)
    loop = asyncio.get_running_loop()
    clock, got, late = loop.time, 0, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + late)
    async for chunk in transfer.chunks:
        got += len(chunk)
        late += DEADLINE_S
    assert got == 3 * MAX_CHUNK


async def test_only_so_many_transfers_are_answered_at_once(
    pair: Pair, make_host: Callable[[], Awaitable[Host]]
) -> None:
    a, b = await pair.start()
    finish = asyncio.Event()

    async def held() -> AsyncGenerator[bytes, None]:
        await finish.wait()
        yield b"x"

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer(1, held())

    b.bulk.serve(handler)
    under_way = [await a.bulk.fetch(b.me, b"x") for _ in range(bulk.MAX_ANSWERS_PER_PEER)]
    with pytest.raises(bulk.Busy, match="4 transfers to you are already in progress"):
        await a.bulk.fetch(b.me, b"x")
    finish.set()
    assert [await transfer.read() for transfer in under_way] == bulk.MAX_ANSWERS_PER_PEER * [b"x"]
    await pair.one.until(lambda: not b.bulk._answers._under_way)
    assert await (await a.bulk.fetch(b.me, b"x")).read() == b"x"


def test_answers_are_bounded_in_all_and_counted_down_whatever_happens() -> None:
    answers = Answers()
    with ExitStack() as under_way:
        for k in range(bulk.MAX_ANSWERS):
            under_way.enter_context(answers.one_for(f"peer {k // bulk.MAX_ANSWERS_PER_PEER}", Stream()))
        with pytest.raises(bulk.Busy, match="busy with 16 transfers"), answers.one_for("another", Stream()):
            pass
    with pytest.raises(OSError, match="broken"), answers.one_for("another", Stream()):
        raise OSError("broken")
    for _ in range(bulk.MAX_ANSWERS + 1):
        with answers.one_for("another", Stream()):
            pass


def test_who_hoards_transfers_with_many_devices_of_one_pass_makes_room_for_others() -> None:
    answers, aborted = Answers(), list[str]()

    def one_for(peer: str, serial: bytes) -> AbstractContextManager[None]:
        stream = Stream()
        stream.abort = lambda: aborted.append(peer)  # type: ignore[method-assign]
        return answers.one_for(peer, stream, serial)

    with ExitStack() as under_way:
        for k in range(bulk.MAX_ANSWERS):
            under_way.enter_context(one_for(f"m{k // bulk.MAX_ANSWERS_PER_PEER}", b"many"))
        with pytest.raises(bulk.Busy, match="busy with 16 transfers"), one_for("m9", b"many"):
            pass
        for _ in range(4):
            under_way.enter_context(one_for("alice", b"alice"))
        assert aborted == ["m3"] * 4 and len(answers._under_way) == bulk.MAX_ANSWERS
        for peer in ("b1", "b2"):
            for _ in range(4):
                under_way.enter_context(one_for(peer, b"bob") if len(aborted) < 10 else nullcontext())
        assert aborted[4:] == ["m2"] * 4 + ["m1"] * 2, "until he has as many as she, but for one"
        with pytest.raises(bulk.Busy), one_for("m9", b"many"):
            pass
        answers.favoured = frozenset({"m0", "m1", "alice"})
        with pytest.raises(bulk.Busy), one_for("carol", b"bob"):
            pass
    assert not answers._under_way


def test_the_slowest_of_those_who_had_their_time_makes_room() -> None:
    now = 0.0
    answers, streams = Answers(lambda: now), [Stream() for _ in range(bulk.MAX_ANSWERS)]
    aborted: list[int] = []
    with ExitStack() as under_way:
        for k, stream in enumerate(streams):
            stream.abort = lambda k=k: aborted.append(k)  # type: ignore[method-assign, misc]
            under_way.enter_context(answers.one_for(f"peer {k}", stream))
            stream.sent += int(
                (1 + k) * bulk.FAIR_RATE / 3 * 2 * bulk.PATIENCE_S
            )  # the third and later are fast enough
        now = bulk.PATIENCE_S - 1.0
        with pytest.raises(bulk.Busy, match="busy with 16 transfers"), answers.one_for("another", Stream()):
            pass
        now = 2 * bulk.PATIENCE_S
        for slow in (0, 1):
            under_way.enter_context(answers.one_for(f"another {slow}", Stream()))
            assert aborted == list(range(slow + 1))
        with pytest.raises(bulk.Busy, match="busy with 16 transfers"), answers.one_for("one more", Stream()):
            pass
        answers.favoured = frozenset({"coordinator"})
        with answers.one_for("coordinator", Stream()):
            assert aborted == [0, 1], "the coordinator needs no room"
    assert not answers._under_way


async def test_an_asker_that_takes_little_at_a_time_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never takes nothing for long."""
    a, b = await pair.start()
    ended = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        monkeypatch.setattr(bulk, "IDLE_TIMEOUT_S", 1.0)  # from here on: the request itself may be late
        monkeypatch.setattr(bulk, "LEAST_TAKEN", 2.0**40)
        try:
            while True:
                yield bytes(1 << 18)
        finally:
            ended.set()

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer(1 << 40, endless())

    b.bulk.serve(handler)
    transfer = await a.bulk.fetch(b.me, b"x", max_bytes=1 << 40, least_rate=0.001)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(BulkError, match="the transfer broke off after"):
            async for _ in transfer.chunks:
                await asyncio.sleep(0.05)
        await ended.wait()


async def test_a_guest_fetches_the_manifest_by_hash_and_nothing_else(
    make_host: Callable[[], Awaitable[Host]], make_recorder: Any
) -> None:
    key = Ed25519PrivateKey.generate()
    signed = make_manifest(key)
    run_hash = signed.verify().hash
    fingerprint = key_fingerprint(signed.public_key)
    guest, host = await make_host(), await make_host()
    network = make_recorder().network(host, run=run_hash, role=Role.COORDINATOR)
    await network.start()
    where = await host.addresses()
    door = network.admission.door
    door._organiser = key.public_key().public_bytes_raw()
    ticket = Ticket.issue(key, run_hash, "alice", 1, int(time.time()) + 60)
    me = Introduction(run_hash, Actor(guest.peer_id, 0), Role.GUEST, None, Channel.BULK)
    enrols = dataclasses.replace(me, enrolment=ticket.enrol(guest.peer_id))
    with pytest.raises(BulkError, match="no manifest yet"):
        await fetch_manifest(guest, host.peer_id, where, enrols)
    network.bulk.manifest = signed
    assert await fetch_manifest(guest, host.peer_id, where, enrols) == signed
    assert await fetch_manifest(guest, host.peer_id, [], enrols, fingerprint) == signed
    with pytest.raises(ManifestError, match="the invite names organiser"):
        await fetch_manifest(guest, host.peer_id, where, enrols, "0000-0000-0000-0000")
    for shown in (b"state 3", b"certificate"):
        stream = await guest.open_stream(host.peer_id, PROTOCOL)
        await introduce(stream, enrols, host.peer_id)
        with pytest.raises(BulkError, match="a guest may request only the manifest and its own certificate"):
            await bulk.request(stream, shown)

    async def registrar(peer: str, given: Pass, block: str) -> bytes:
        return f"{peer} {given.name}".encode()

    network.bulk.register(registrar)
    assert await fetch_certificate(guest, host.peer_id, [], enrols) == f"{guest.peer_id} alice".encode()
    with pytest.raises(Refused, match="no pass: you show no valid pass"):
        await fetch_manifest(guest, host.peer_id, where, me)
    with pytest.raises(Refused, match="no pass"):
        await fetch_manifest(guest, host.peer_id, where, dataclasses.replace(me, enrolment=ticket.enrol(host.peer_id)))
    with pytest.raises(DialError):
        await fetch_manifest(guest, guest.peer_id[:-3] + "abc", ["/ip4/127.0.0.1/tcp/1"], me)
    await network.close()


async def test_a_forged_manifest_is_refused(make_host: Callable[[], Awaitable[Host]]) -> None:
    honest = make_manifest(Ed25519PrivateKey.generate())
    run_hash = honest.verify().hash
    tampered = honest.manifest.replace(b'"steps":30', b'"steps":31')
    assert tampered != honest.manifest
    sent = honest

    async def liar(stream: Stream, remote_peer: str) -> None:
        await Admission(Actor(host.peer_id, 1), Door(run_hash, (guest.peer_id,)), Role.PEER).receive(
            stream, remote_peer
        )
        await stream.read_frame(1000, 0)
        proto = link_pb2.SignedManifest(manifest=sent.manifest, public_key=sent.public_key, signature=sent.signature)
        raw = proto.SerializeToString()
        await stream.write_frame(link_pb2.BulkHead(total=len(raw)).SerializeToString())
        await stream.write_frame(b"", raw)

    guest, host = await make_host(), await make_host()
    me = Introduction(run_hash, Actor(guest.peer_id, 0), Role.GUEST, None, Channel.BULK)
    await host.handle_streams(PROTOCOL, liar)
    where = await host.addresses()
    assert await fetch_manifest(guest, host.peer_id, where, me) == honest
    sent = honest.model_copy(update={"manifest": tampered})
    with pytest.raises(ManifestError, match="the invite names run"):
        await fetch_manifest(guest, host.peer_id, where, me)
    sent = honest.model_copy(update={"public_key": b"short"})
    with pytest.raises(ManifestError, match="no valid signature"):
        await fetch_manifest(guest, host.peer_id, where, me)
    sent = honest.model_copy(update={"signature": bytes(64)})
    with pytest.raises(ManifestError, match="no valid signature"):
        await fetch_manifest(guest, host.peer_id, where, me)


async def test_another_run_is_no_donor(pair: Pair) -> None:
    a, b = await pair.start(second={"run": "cd" * 32})
    with pytest.raises(Refused, match="other run"):
        await a.bulk.fetch(b.me, b"state")


def test_chunks_fit_the_frames_they_travel_in() -> None:
    async def collect() -> list[int]:
        return [len(piece) async for piece in Transfer.of(bytes(2 * MAX_CHUNK + 1)).chunks]

    assert asyncio.run(collect()) == [MAX_CHUNK, MAX_CHUNK, 1]
