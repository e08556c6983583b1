"""The coordinator's archive, fed by holders that fail; its text, and its key."""

from __future__ import annotations

import asyncio
import shutil
import stat
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from peers.coordinator import feeder as feeder_module
from peers.coordinator.collector import FIRST_RATE, Collector
from peers.coordinator.feeder import Feeder
from peers.coordinator.organiser_key import KeyDamaged, organiser_key
from peers.coordinator.pass_book import PassBook
from peers.run.home import Home
from peers.runtime.checkpoint_request import CheckpointRequest
from swarm.events import CheckpointRefused, Event
from swarm.net.bulk import LEAST_RATE, TooSlow, Transfer
from swarm.net.host import DialError
from swarm.protocol.coordinator.io import CollectCheckpoint
from swarm.protocol.ids import Actor, Microbatch, PassId, PassKind, StepNumber, Term
from swarm.state.archive import Archive
from swarm.state.layout import ShardMeta, state_shapes
from swarm.state.room import SPARE_BYTES
from swarm.state.transfer import HEADER_BYTES, TransferHeader, iter_chunks

RUN = "ab" * 32
HOLDERS = (Actor("one", 1), Actor("two", 1))


def nobody(holder: Actor) -> None:
    raise AssertionError(f"{holder} has sent nothing")


class Unreachable:
    async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> object:
        raise DialError(f"{who.peer} is behind a wall")


async def test_each_holders_failure_is_an_event(tmp_path: Path) -> None:
    network: Any = Unreachable()
    told: list[Event] = []
    order = CollectCheckpoint(10, Term(1), (HOLDERS,), ("00" * 32,))
    lacking: list[tuple[int, int]] = []
    collector = Collector(
        network, Archive(tmp_path, RUN, 1, 1), told.append, nobody, lambda *what: lacking.append(what)
    )
    assert await collector.collect(order) == ()
    assert lacking == [(10, 0)]
    assert told == [
        CheckpointRefused(f"{holder} stage 0 version 10", f"not archived: {holder.peer} is behind a wall")
        for holder in HOLDERS
    ]


class Crawling:
    """Each holder sends so many bytes a second. Writes down what was asked of whom."""

    def __init__(self, **rates: float) -> None:
        self.rates = rates
        self.asked: list[tuple[str, float]] = []

    async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
        self.asked.append((who.peer, least_rate))
        if self.rates[who.peer] < least_rate:
            raise TooSlow("7 of 8 bytes came")
        return Transfer.of(b"")


async def test_who_is_too_slow_is_passed_over_and_less_is_asked_when_all_are(tmp_path: Path) -> None:
    order = CollectCheckpoint(10, Term(1), (HOLDERS,), ("00" * 32,))
    network: Any = Crawling(one=0.1, two=FIRST_RATE / 3)
    collector = Collector(network, Archive(tmp_path, RUN, 1, 1), lambda event: None, nobody)
    for _ in range(3):
        await collector.collect(order)
    asked = [FIRST_RATE, FIRST_RATE, FIRST_RATE / 2, FIRST_RATE / 2, FIRST_RATE / 4, FIRST_RATE / 4]
    assert network.asked == [(peer, rate) for peer, rate in zip(["one", "two"] * 3, asked, strict=True)]
    for _ in range(20):
        await collector.collect(order)
    assert network.asked[-1] == ("two", LEAST_RATE)


async def test_less_is_asked_for_one_stage_only_and_until_a_copy_comes_faster(tmp_path: Path) -> None:
    """Else one bad hour of one stage would let any holder drip for ever."""
    holders: Any = Whole()
    fetch, asked = holders.fetch, []

    async def slow(who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
        asked.append((CheckpointRequest.decode(request).stage, least_rate))
        if least_rate > FIRST_RATE / 4:
            raise TooSlow("7 of 8 bytes came")
        return await fetch(who, request, max_bytes, least_rate)

    holders.fetch = slow
    archive = Archive(tmp_path, RUN, 2, 1)
    collector = Collector(holders, archive, lambda event: None, lambda holder: None)
    one = (HOLDERS[0],)
    for stage, version in ((0, 10), (0, 10), (0, 10), (0, 20), (1, 10)):
        archive.holds = lambda each, *_, stage=stage: each != stage  # type: ignore[method-assign]
        await collector.collect(CollectCheckpoint(version, Term(1), (one, one), (holders.hash,) * 2))
    assert asked == [(0, FIRST_RATE), (0, FIRST_RATE / 2), (0, FIRST_RATE / 4), (0, FIRST_RATE), (1, FIRST_RATE)]


async def test_it_is_said_that_bytes_come_from_a_holder(tmp_path: Path) -> None:
    class Network:
        async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
            return Transfer.of(b"no checkpoint")

    network: Any = Network()
    come: list[Actor] = []
    collector = Collector(network, Archive(tmp_path, RUN, 1, 1), lambda event: None, come.append)
    await collector.collect(CollectCheckpoint(10, Term(1), (HOLDERS,), ("00" * 32,)))
    assert come == list(HOLDERS)


async def test_no_more_is_taken_than_the_model_makes_possible(tmp_path: Path) -> None:
    """A peer that is asked for 1,000 bytes and announces two gigabytes: nothing of it reaches the disk."""

    class Network:
        async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
            taken.append(max_bytes)
            header = TransferHeader(RUN, CheckpointRequest.decode(request).stage, 10, 2 << 30, "00" * 32)
            return Transfer.of(header.encode() + bytes(4096))

    network: Any = Network()
    taken: list[int] = []
    told: list[Event] = []
    archive = Archive(tmp_path / "archive", RUN, 2, 1, shard_limits=[1000, 5000])
    for stage in range(2):
        order = CollectCheckpoint(10, Term(1), ((HOLDERS[0],), (HOLDERS[1],)), ("00" * 32,) * 2)
        archive.holds = lambda each, *_, stage=stage: each != stage  # type: ignore[method-assign]
        assert await Collector(network, archive, told.append, lambda holder: None).collect(order) == ()
    assert taken == [HEADER_BYTES + 1000, HEADER_BYTES + 5000]
    assert all("this stage has at most" in str(event) for event in told) and len(told) == 2
    assert not await asyncio.to_thread(lambda: list((tmp_path / "archive").rglob("*.safetensors*")))


async def test_who_fails_otherwise_is_asked_no_less(tmp_path: Path) -> None:
    network: Any = Crawling(one=FIRST_RATE, two=FIRST_RATE)  # sends nothing, and quickly
    collector = Collector(network, Archive(tmp_path, RUN, 1, 1), lambda event: None, nobody)
    for _ in range(3):
        assert await collector.collect(CollectCheckpoint(10, Term(1), (HOLDERS,), ("00" * 32,))) == ()
    assert {rate for _, rate in network.asked} == {FIRST_RATE}


class Whole:
    """Holders of a real shard. Counts what was asked of them, and the chunks that were taken."""

    def __init__(self) -> None:
        tensors = {name: torch.zeros(shape) for name, shape in state_shapes({"w": (300, 300)}).items()}
        self.chunks = list(iter_chunks(tensors, ShardMeta(RUN, 0, 10, 10, "cd" * 32, "ef" * 32)))
        self.hash = TransferHeader.decode(self.chunks[0], "x").hash
        self.asked = self.taken = 0

    async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
        self.asked += 1

        async def chunks() -> AsyncGenerator[bytes, None]:
            for chunk in self.chunks:
                self.taken += 1
                yield chunk

        return Transfer(sum(map(len, self.chunks)), chunks())


@pytest.mark.parametrize("from_archive", [True, False])
async def test_a_full_disk_is_told_once_and_asked_less_and_less_often_and_no_holder_is_blamed(
    from_archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower with a full disk fetched each checkpoint again every few heartbeats, and a leader suspected peers."""
    holders: Any = Whole()
    now, free = [100.0], [SPARE_BYTES]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    told: list[Event] = []
    unfetched: list[tuple[int, int]] = []
    archive = Archive(tmp_path, RUN, 1, 1)
    collector = Collector(
        holders, archive, told.append, lambda holder: None, lambda *what: unfetched.append(what), lambda: now[0]
    )
    order = CollectCheckpoint(10, Term(1), (HOLDERS,), (holders.hash,), from_archive)
    for _ in range(600):
        now[0] += 1.0
        assert await collector.collect(order) == ()
    assert 1 <= holders.asked < 12 and holders.taken == holders.asked < len(holders.chunks) * holders.asked
    (event,) = told
    assert isinstance(event, CheckpointRefused) and "No space left on device" in event.reason and not unfetched
    free[0] = 1 << 30
    now[0] += 600.0
    assert len(await collector.collect(order)) == 1 and archive.holds(0, 10, holders.hash)


async def test_a_full_disk_is_told_once_although_the_small_stage_of_each_checkpoint_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunks_of(stage: int, version: int) -> list[bytes]:
        tensors = {name: torch.zeros(shape) for name, shape in state_shapes({"w": ((3, 300)[stage], 300)}).items()}
        return list(iter_chunks(tensors, ShardMeta(RUN, stage, version, version, "cd" * 32, "ef" * 32)))

    class Network:
        async def fetch(self, who: Actor, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
            asked = CheckpointRequest.decode(request)

            async def chunks() -> AsyncGenerator[bytes, None]:
                for chunk in chunks_of(asked.stage, asked.version):
                    yield chunk

            return Transfer(0, chunks())

    network: Any = Network()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=SPARE_BYTES + 300 * 300 * 4))
    now, told = [0.0], list[Event]()
    archive = Archive(tmp_path, RUN, 2, 1)
    collector = Collector(network, archive, told.append, lambda holder: None, clock=lambda: now[0])
    for version in (10, 20, 30):
        hashes = [TransferHeader.decode(chunks_of(stage, version)[0], "x").hash for stage in range(2)]
        now[0] += 1000.0
        assert await collector.collect(CollectCheckpoint(version, Term(1), (HOLDERS, HOLDERS), tuple(hashes))) == ()
        assert archive.holds(0, version) and not archive.holds(1, version)
    assert len(told) == 1


async def test_a_shard_for_which_no_thread_can_be_started_is_told_and_no_holder_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    holders: Any = Whole()
    told: list[Event] = []
    unfetched: list[tuple[int, int]] = []
    collector = Collector(
        holders, Archive(tmp_path, RUN, 1, 1), told.append, lambda holder: None, lambda *what: unfetched.append(what)
    )
    order = CollectCheckpoint(10, Term(1), (HOLDERS,), (holders.hash,))
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        assert await collector.collect(order) == ()
    assert holders.asked == 1 and not unfetched
    why = "not archived: can't start new thread: raise the limit of threads with `ulimit -u`"
    assert told == [CheckpointRefused(str(tmp_path), why)]


async def test_a_shard_that_left_the_archive_meanwhile_is_told_not_raised(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, 1, 1)
    archive.holds = lambda *_: True  # type: ignore[method-assign]  # and pruned before it was looked at
    told: list[Event] = []
    unused: Any = None
    order = CollectCheckpoint(10, Term(1), (HOLDERS,), ("00" * 32,))
    assert await Collector(unused, archive, told.append, nobody).collect(order) == ()
    assert [type(event) for event in told] == [CheckpointRefused]


def test_a_sample_that_was_given_up_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[list[int]] = []

    class Format:
        def __init__(self, _manifest: object) -> None:
            pass

        def pack_tokens(self, _kind: PassKind, tokens: np.ndarray) -> bytes:
            packed.append(tokens[0].tolist())
            return b""

    monkeypatch.setattr(feeder_module, "BodyFormat", Format)
    manifest: Any = SimpleNamespace(
        model=SimpleNamespace(context=8), evaluation=SimpleNamespace(prompt="x", sample_tokens=4)
    )
    tokenizer: Any = SimpleNamespace(prompt=lambda text: [1, 2])
    unused: Any = None
    feeder = Feeder(manifest, unused, tokenizer)
    for step, index in ((9, 2), (9, 3), (19, 2)):
        feeder.body(PassId(Term(1), StepNumber(step), index), PassKind.GENERATE, Microbatch(0))
        feeder.add_sampled(40 + index)
    assert packed == [[1, 2], [1, 2, 42], [1, 2]]


def test_the_organisers_key_is_whole_private_and_the_same_ever_after(tmp_path: Path) -> None:
    with Home.open(tmp_path / "home") as home:
        made = organiser_key(home).private_bytes_raw()
        path = home.path / "organiser.key"
        assert path.read_bytes() == made == organiser_key(home).private_bytes_raw()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.write_bytes(made[:7])  # such as a crash left behind before keys were written whole
        with pytest.raises(KeyDamaged, match=r"organiser\.key is not an Ed25519 key: restore it"):
            organiser_key(home)


def test_a_lost_key_is_not_replaced_while_there_are_passes_that_it_signed(tmp_path: Path) -> None:
    with Home.open(tmp_path / "home") as home:
        made = organiser_key(home)
        PassBook(home, "0" * 64).printed(made, 8)
        home.organiser_key.unlink()
        with pytest.raises(KeyDamaged, match=r"organiser\.key is missing.*restore it.*passes away.*new invites"):
            organiser_key(home)
        assert not home.organiser_key.exists()
        home.passes.rename(home.path / "old-passes")
        assert organiser_key(home).private_bytes_raw() != made.private_bytes_raw()


def test_a_key_that_cannot_be_written_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    home: Any = SimpleNamespace(path=tmp_path, organiser_key=tmp_path / "organiser.key", passes=tmp_path / "passes")
    with pytest.raises(OSError, match="No space left"):
        organiser_key(home)
    assert list(tmp_path.iterdir()) == []
