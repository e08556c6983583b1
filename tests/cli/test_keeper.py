"""A peer's state as others fetch it: one copy for all who come at the same time, never that of a history before."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from peers.runtime.piece_request import PieceRequest
from peers.runtime.state_request import StateRequest
from peers.stage import copies
from peers.stage import keeper as keeper_module
from peers.stage.copies import MAX_REST_S, PAUSE_S
from peers.stage.keeper import Keeper
from peers.stage.service import Service
from swarm.compute.held import HeldState, Holds
from swarm.manifest import CodecSection, DataSection, RunManifest, RunSection, Shard
from swarm.net.bulk import PATIENCE_S, BulkError
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.peer.io import FetchSums, LoadState
from swarm.protocol.peer.status_reports import Saved
from swarm.state import checkpoints
from swarm.state.error import StateError
from swarm.state.layout import state_shapes
from swarm.state.packed import framed
from swarm.state.pieces import Index, SumsFile
from swarm.state.transfer import HEADER_BYTES

ONE, TWO, THREE = (Actor(name, 1) for name in ("one", "two", "three"))


class Engine:
    """Holds a state of one number; counts the copies that were begun."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.value = 1.0
        self.names: tuple[str, ...] = ("param/w",)
        self.snapshots = 0

    def prepare(self) -> None:
        pass

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        self.snapshots += 1
        tensors = {name: torch.full((3,), self.value) for name in self.names}
        holds = Holds()
        holds.add(held := HeldState(holds, tensors, self.version, 0, "00" * 32, ""))
        future: Future[Any] = Future()
        try:
            future.set_result(copy(held))
        except Exception as error:
            future.set_exception(error)
        return future

    def initialise(self) -> Future[None]:
        return done(None)

    def close(self) -> None:
        pass


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def keeper_of(engine: Engine, folder: Path, run: str = "swarm", codec: str = "int8") -> Keeper:
    shard = (Shard(file="train.bin", sha256="0" * 64, tokens=100_000),)
    data = DataSection(
        tokenizer_sha256="1" * 64, vocab_size=4096, train=shard, heldout=shard, unigram_entropy=7.0, bytes_per_token=3.5
    )
    unused: Any = None
    manifest = RunManifest(data=data, run=RunSection(name=run), codec=CodecSection(forward="int8", backward=codec))
    keeper = Keeper(manifest, folder, unused, unused, unused, lambda event: None, unused)
    keeper.engine, keeper.stage = engine, 0  # type: ignore[assignment]
    return keeper


async def whole(keeper: Keeper, version: int) -> bytes:
    return b"".join([chunk async for chunk in keeper.serve(StateRequest(0, version), ONE)])


async def test_those_who_fetch_a_version_at_the_same_time_share_one_copy(tmp_path: Path) -> None:
    engine = Engine(7)
    keeper = keeper_of(engine, tmp_path)
    slow, quick = keeper.serve(StateRequest(0, 7), ONE), keeper.serve(StateRequest(0, 7), TWO)
    first, other = await asyncio.gather(anext(slow), anext(quick))
    assert first == other and engine.snapshots == 1
    assert [first, *[chunk async for chunk in quick]] == [first, *[chunk async for chunk in slow]]
    engine.version = 8
    assert await whole(keeper, 8) and engine.snapshots == 2
    with pytest.raises(StateError, match="asked for stage 0 version 7, holds 8"):
        await whole(keeper, 7)
    assert await whole(keeper, 8) and engine.snapshots == 3  # nobody was left to keep it for


async def test_a_copy_of_before_a_rollback_is_given_to_nobody_after_it(tmp_path: Path) -> None:
    engine = Engine(7)
    keeper = keeper_of(engine, tmp_path)
    before = keeper.serve(StateRequest(0, 7), ONE)
    header = await anext(before)
    await keeper.load(LoadState(StageIndex(0), 0, None, False))
    engine.value = 2.0
    assert await anext(keeper.serve(StateRequest(0, 7), TWO)) != header  # it holds the hash of what follows
    assert engine.snapshots == 2
    await before.aclose()


async def test_an_order_that_replaces_another_gets_the_engine_that_is_kept(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(0), tmp_path)
    keeper.engine = None
    making, go_on = threading.Event(), threading.Event()
    made: list[Engine] = []

    def new_engine(stage: int, post: object) -> Engine:
        making.set()
        assert go_on.wait(60)
        made.append(Engine(0))
        return made[-1]

    keeper._new_engine = new_engine  # type: ignore[assignment]
    order = LoadState(StageIndex(0), 0, None, from_archive=False)
    first = asyncio.create_task(keeper.load(order))
    await asyncio.to_thread(making.wait, 60)
    first.cancel()
    second = asyncio.create_task(keeper.load(order))
    await asyncio.sleep(0.2)  # long enough for a second thread to begin, if one may
    go_on.set()
    used = await second
    await asyncio.get_running_loop().shutdown_default_executor()  # all threads are done
    assert used is keeper.engine and len(made) == 1  # type: ignore[comparison-overlap]


async def test_donors_who_agree_on_a_state_of_no_bytes_give_none(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(0), tmp_path)

    async def nothing(donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        async def index() -> AsyncGenerator[bytes, None]:
            yield Index(0, ()).encode()

        return index()

    keeper._fetch_pieces = nothing
    with pytest.raises(StateError, match="the donors: 0 bytes is too short"):
        await keeper.load(LoadState(StageIndex(0), 3, None, False, (ONE, TWO)))


async def test_a_run_does_not_prune_what_the_home_keeps_of_another(tmp_path: Path) -> None:
    engine = Engine(10)
    await keeper_of(engine, tmp_path).save(10)
    another = keeper_of(engine, tmp_path, "another")
    assert another.preferred() is None
    for engine.version in (20, 30, 40, 50):
        await another.save(engine.version)
    kept = [keeper_of(engine, tmp_path, run)._store.versions(0) for run in ("swarm", "another")]
    assert [max(versions) for versions in kept] == [10, 50]


async def test_a_save_does_not_prune_what_another_one_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(20)
    keeper = keeper_of(engine, tmp_path)
    writing, go_on = threading.Event(), threading.Event()
    sync_folder = checkpoints.sync_folder

    def slowly(path: Path) -> None:
        sync_folder(path)
        if path.name == "00000020":  # written, and not committed
            writing.set()
            assert go_on.wait(60)

    monkeypatch.setattr(checkpoints, "sync_folder", slowly)
    first = asyncio.create_task(keeper.save(20))
    await asyncio.to_thread(writing.wait, 60)
    engine.version = 21
    second = asyncio.create_task(keeper.save(21))
    await asyncio.wait((second,), timeout=0.2)  # long enough for a second thread to be done, if one may begin
    go_on.set()
    assert await first and await second
    assert keeper._store.versions(0) == [20, 21]


async def test_sums_that_come_out_the_same_after_a_rollback_are_taken(tmp_path: Path) -> None:
    engine = Engine(5)
    keeper = keeper_of(engine, tmp_path / "checkpoints")
    engine.buckets = engine.whole_buckets = 1  # type: ignore[attr-defined]
    keeper._post = lambda event: None
    SumsFile.write(file := io.BytesIO(), 1, [b"the sums of step 7"])
    data = file.getvalue()

    async def fetch(donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        asked = PieceRequest.decode(request)
        assert asked is not None

        async def answer() -> AsyncGenerator[bytes, None]:
            yield b"".join(framed(data)) if asked.packed and asked.count else data if asked.count else index

        return answer()

    index = Index.of(io.BytesIO(data)).encode()
    keeper._fetch_pieces = fetch
    order = FetchSums(StageIndex(0), 7, "digest", (ONE, TWO))
    assert await keeper.fetch_sums(order)
    await keeper.load(LoadState(StageIndex(0), 0, None, False))
    assert await keeper.fetch_sums(order)


class Clock:
    """In place of the keeper's. A copy takes so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Engine, copying_s: float = 0.0) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        copied = engine.copied

        def slowly(copy: Callable[[HeldState], Any]) -> Future[Any]:
            self.now += copying_s
            return copied(copy)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

        engine.copied = slowly  # type: ignore[method-assign]
        monkeypatch.setattr(copies.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(copies.asyncio, "sleep", sleep)


async def test_at_most_two_copies_are_held_and_the_slow_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(7)
    clock, keeper = Clock(monkeypatch, engine), keeper_of(engine, tmp_path)
    older = keeper.serve(StateRequest(0, 7), ONE)
    await anext(older)
    engine.version = 8
    newer = keeper.serve(StateRequest(0, 8), TWO)
    await anext(newer)
    engine.version = 9
    with pytest.raises(StateError, match="2 versions are being fetched: ask another replica"):
        await anext(keeper.serve(StateRequest(0, 9), THREE))
    assert engine.snapshots == 2
    clock.now += PATIENCE_S + 1.0
    assert await anext(keeper.serve(StateRequest(0, 9), THREE)) and sorted(keeper._copies._held) == [8, 9]
    await anext(older)
    with pytest.raises(StateError, match="other peers ask for a newer version"):
        await anext(older)
    assert [chunk async for chunk in newer], "nobody else had to go"


async def test_a_peer_is_not_kept_from_training_by_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(7)
    clock, keeper = Clock(monkeypatch, engine, copying_s=0.5), keeper_of(engine, tmp_path)
    for version in (7, 8, 9):
        engine.version = version
        await whole(keeper, version)
    assert clock.slept == pytest.approx([5.0, 5.0])
    clock.now += 60.0
    await whole(keeper, 9)
    assert len(clock.slept) == 2 and keeper._copies._next_at - clock.now <= MAX_REST_S


async def test_a_version_that_is_over_after_the_rest_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(7)
    Clock(monkeypatch, engine, copying_s=0.5)
    keeper = keeper_of(engine, tmp_path)
    await whole(keeper, 7)

    async def sleep(seconds: float) -> None:
        engine.version = 8

    monkeypatch.setattr(copies.asyncio, "sleep", sleep)
    with pytest.raises(StateError, match="version 7 is over, this peer is at 8"):
        await whole(keeper, 7)
    assert engine.snapshots == 1 and not keeper._copies._held


async def test_who_leaves_a_copy_before_its_end_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(7)
    clock, keeper = Clock(monkeypatch, engine), keeper_of(engine, tmp_path)
    await whole(keeper, 7)
    assert await whole(keeper, 7), "who takes all of it may come again"
    left = keeper.serve(StateRequest(0, 7), ONE)
    await anext(left)
    await left.aclose()
    with pytest.raises(StateError, match="you left the last copy before its end: ask again in 2 s"):
        await whole(keeper, 7)
    assert await anext(keeper.serve(StateRequest(0, 7), TWO)), "others need not wait"
    clock.now += PAUSE_S
    assert await whole(keeper, 7) and ONE.peer not in keeper._copies._broke_off


async def test_saved_checkpoints_are_for_the_coordinator(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(7), tmp_path)
    request = StateRequest(0, 7, checkpoint=True).encode()
    with pytest.raises(BulkError, match="saved checkpoints are for the coordinator's archive"):
        await Service(keeper, (ONE,)).answer(TWO, request)
    with pytest.raises(BulkError, match="checkpoint"):  # there is none, but it was looked for
        await Service(keeper, (ONE,)).answer(ONE, request)
    live = await Service(keeper, (ONE,)).answer(TWO, StateRequest(0, 7).encode())
    assert len(await live.read()) == live.total


@pytest.mark.parametrize("same", [True, False])
async def test_an_own_checkpoint_is_used_if_whoever_is_asked_has_the_same(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback a version may have come out otherwise than it lies here."""
    monkeypatch.setattr(keeper_module, "parameter_shapes", lambda model, stage: {"w": (3,)})
    one, two = Engine(7), Engine(7)
    for engine in (one, two):
        engine.names = tuple(state_shapes({"w": (3,)}))
    mine, theirs = keeper_of(one, tmp_path / "one"), keeper_of(two, tmp_path / "two")
    await mine.save(7)
    two.value = 1.0 if same else 2.0
    sent: list[int] = []

    async def fetch(source: Actor, request: bytes) -> AsyncGenerator[bytes, None]:
        async for chunk in theirs.serve(StateRequest.decode(request), ONE):
            sent.append(len(chunk))
            yield chunk

    mine._fetch = fetch
    order = LoadState(StageIndex(0), 7, TWO, from_archive=False)
    shard, source = await mine._download(order, mine._own(0, 7))
    assert source == ("own checkpoint" if same else str(TWO))
    assert all(torch.equal(tensor, torch.full((3,), two.value)) for tensor in shard.tensors.values())
    assert sent == [HEADER_BYTES] if same else len(sent) > 1


async def test_an_own_checkpoint_that_is_torn_is_tried_once(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(7), tmp_path)
    await keeper.save(7)
    own = keeper._own(0, 7)
    assert own is not None
    own.path.write_bytes(b"torn")
    assert keeper._load_own(0, 7) is None and keeper._own(0, 7) is None


@pytest.mark.parametrize("codec", ["int8", "auto"])
async def test_an_own_checkpoint_may_be_of_steps_that_came_out_otherwise(codec: str, tmp_path: Path) -> None:
    """Other machines may have done them since. Of what an earlier process has left, only the stage counts."""
    keeper = keeper_of(Engine(7), tmp_path, codec=codec)
    await keeper.save(7)
    assert keeper.preferred() == Saved(StageIndex(0), version=-1, digest="")
    assert [chunk async for chunk in keeper.serve(StateRequest(0, 7, checkpoint=True), ONE)], "the archive may have it"
