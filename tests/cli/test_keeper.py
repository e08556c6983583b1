"""A peer's state: loaded from donors or an archive, whatever lies on its own disk, and saved."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.stage import incoming as incoming_module
from peers.stage import keeper as keeper_module
from peers.stage.driver import StageDriver
from peers.stage.keeper import Keeper
from peers.stage.lent_files import LentFiles
from peers.stage.retention import Retention
from peers.stage.service import Service
from swarm.compute.held import HeldState, Holds, StateFreed
from swarm.compute.optimizer import StageState
from swarm.events import Event, EventLog, Gathered, StateFetched
from swarm.manifest import CodecSection, DataSection, RunManifest, RunSection, Shard
from swarm.net.bulk import BulkError
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.io import Stop, Tick
from swarm.protocol.messages import Donor
from swarm.protocol.peer.io import Fetched, FetchSums, LoadState, SumsFetched
from swarm.protocol.peer.status_reports import Saved
from swarm.state import checkpoints
from swarm.state.error import StateError
from swarm.state.layout import state_shapes
from swarm.state.packed import framed
from swarm.state.pieces import Index, SumsFile, pieces_in
from swarm.state.transfer import HEADER_BYTES

ONE, TWO = (Actor(name, 1) for name in ("one", "two"))


class State:
    """One number; counts the copies that were begun."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.value = 1.0
        self.names: tuple[str, ...] = ("param/w",)
        self.snapshots = 0
        self.loaded: dict[str, torch.Tensor] | None = None

    def prepare(self) -> None:
        pass

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        self.snapshots += 1
        tensors = {name: torch.full((200_000,), self.value) for name in self.names}
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

    def load(self, state: StageState) -> Future[None]:
        self.loaded = dict(state.tensors)
        return done(None)


class Engine:
    """Holds this version of a state."""

    def __init__(self, version: int) -> None:
        self.state = State(version)
        self.tensors: Tensors | None = None
        self.graph_bytes = 0

    def limit_graphs(self, budget_bytes: int) -> None:
        self.graph_bytes = budget_bytes

    def close(self) -> None:
        self.tensors = None


class Tensors:
    """In a cycle, as those of real engines."""

    def __init__(self) -> None:
        self.itself = self


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
    keeper = Keeper(manifest, folder, unused, lambda event: None, unused, lambda event: None, lambda: 1000)
    keeper.engine, keeper.stage = engine, 0  # type: ignore[assignment]
    return keeper


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
    order = LoadState(StageIndex(0), 0)
    first = asyncio.create_task(keeper.load(order))
    await asyncio.to_thread(making.wait, 60)
    first.cancel()
    second = asyncio.create_task(keeper.load(order))
    await asyncio.sleep(0.2)  # long enough for a second thread to begin, if one may
    go_on.set()
    used = await second
    await asyncio.get_running_loop().shutdown_default_executor()  # all threads are done
    assert used is keeper.engine and len(made) == 1  # type: ignore[comparison-overlap]


async def test_a_peer_that_moves_frees_its_old_stage_before_it_allocates_the_new_one(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(0), tmp_path)
    keeper.engine = None
    made: list[weakref.ref[Tensors]] = []

    def new_engine(stage: int, post: object) -> Engine:
        assert all(old() is None for old in made)
        engine = Engine(0)
        engine.tensors = Tensors()
        made.append(weakref.ref(engine.tensors))
        return engine

    keeper._new_engine = new_engine  # type: ignore[assignment]
    for stage in (0, 1):
        await keeper.load(LoadState(StageIndex(stage), 0))
    assert len(made) == 2


async def test_an_engine_gets_the_budget_that_holds_once_it_is_made(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(0), tmp_path)
    keeper.engine, budget = None, 8000
    keeper._graphs = lambda: budget

    def new_engine(stage: int, post: object) -> Engine:
        nonlocal budget
        engine = Engine(0)
        engine.graph_bytes, budget = budget, 1000  # another peer of the process takes its stage
        return engine

    keeper._new_engine = new_engine  # type: ignore[assignment]
    made: Any = await keeper.load(LoadState(StageIndex(0), 0))
    assert made.graph_bytes == 1000


async def test_donors_who_agree_on_a_state_of_no_bytes_give_none(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(0), tmp_path)

    async def nothing(donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        async def index() -> AsyncGenerator[bytes, None]:
            yield Index(0, ()).encode()

        return index()

    keeper._incoming._fetch = nothing
    with pytest.raises(StateError, match="the donors: has only 0 bytes, too few"):
        await keeper.load(LoadState(StageIndex(0), 3, (Donor(ONE, 0), Donor(TWO, 1))))


async def test_a_run_does_not_prune_what_the_home_keeps_of_another(tmp_path: Path) -> None:
    engine = Engine(10)
    await keeper_of(engine, tmp_path).save(10)
    another = keeper_of(engine, tmp_path, "another")
    assert another.preferred() is None
    for engine.state.version in (20, 30, 40, 50):
        await another.save(engine.state.version)
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
    engine.state.version = 21
    second = asyncio.create_task(keeper.save(21))
    await asyncio.wait((second,), timeout=0.2)  # long enough for a second thread to be done, if one may begin
    go_on.set()
    assert await first and await second
    assert keeper._store.versions(0) == [20, 21]


async def test_a_copy_that_cannot_begin_costs_only_the_checkpoint(tmp_path: Path) -> None:
    """The driver reports a StateError as a refused checkpoint; any other error ends the process."""
    engine = Engine(7)
    keeper = keeper_of(engine, tmp_path)
    failed: Future[Any] = Future()
    failed.set_exception(OSError("no thread can be started to copy version 7"))
    engine.state.copied = lambda copy: failed  # type: ignore[method-assign]
    with pytest.raises(StateError, match="this stage's state: no thread can be started to copy version 7"):
        await keeper.save(7)


@pytest.mark.parametrize("spoilt", [False, True])
async def test_a_copy_that_no_thread_can_commit_costs_only_the_checkpoint(
    spoilt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = Engine(7)
    engine.state.value = float("nan") if spoilt else 1.0
    keeper = keeper_of(engine, tmp_path)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        with pytest.raises(StateError, match=r"this stage's state: .*can't start new thread: raise the limit"):
            await keeper.save(7)
        loading = keeper.load(LoadState(StageIndex(0), 7, (Donor(ONE, 0),)))
        with pytest.raises(OSError, match="can't start new thread: raise the limit"):
            await loading
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("*.draft")))


async def test_sums_that_come_out_the_same_after_a_rollback_are_taken(tmp_path: Path) -> None:
    keeper, order = fetcher_of_sums(tmp_path)
    assert await keeper.fetch_sums(order)
    await keeper.load(LoadState(StageIndex(0), 0))
    assert await keeper.fetch_sums(order)


async def test_old_sums_that_cannot_be_removed_do_not_keep_new_ones_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, order = fetcher_of_sums(tmp_path)
    (old := tmp_path / "incoming" / "sums-0-3").write_bytes(b"sums")

    def fails(paths: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as broken:
        broken.setattr(incoming_module, "_remove", fails)
        keeper.applied(3)
        assert await keeper.fetch_sums(order)
    keeper.applied(4)
    assert keeper._incoming._removing is not None
    await keeper._incoming._removing
    assert not old.exists(), "the next removal removes them"


def fetcher_of_sums(folder: Path) -> tuple[Keeper, FetchSums]:
    """A keeper whose donors have the sums of step 7, and the order to fetch them."""
    engine = Engine(5)
    keeper = keeper_of(engine, folder / "checkpoints")
    engine.buckets = engine.whole_buckets = 1  # type: ignore[attr-defined]
    SumsFile.write(file := io.BytesIO(), 1, [b"the sums of step 7"])
    data = file.getvalue()

    async def fetch(donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        asked = PieceRequest.decode(request)
        assert asked is not None

        async def answer() -> AsyncGenerator[bytes, None]:
            yield b"".join(framed(data)) if asked.packed and asked.count else data if asked.count else index

        return answer()

    index = Index.of(io.BytesIO(data)).encode()
    keeper._incoming._fetch = fetch
    return keeper, FetchSums(StageIndex(0), 7, "digest", (ONE, TWO))


async def test_sums_and_lent_files_are_removed_without_a_thread_or_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happen while the core's orders are carried out, where an error ends the process."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    keeper, order = fetcher_of_sums(tmp_path)
    lent = LentFiles(lambda event: None)
    path = tmp_path / "file"
    SumsFile.write(file := io.BytesIO(), 1, [b"sums"])
    path.write_bytes(file.getvalue())
    written = asyncio.get_running_loop().create_future()
    written.set_result(None)
    await lent.keep(3, path, written)
    assert await keeper.fetch_sums(order)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())  # it has no threads yet
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        keeper.applied(7)
        lent.forget(3)
        await asyncio.sleep(0)
        assert not path.exists() and not errors
    assert await keeper.fetch_sums(order), "the sums that are still there are removed before they are fetched again"


async def test_a_fetch_of_sums_from_before_a_rollback_does_not_supply_the_repeated_step(tmp_path: Path) -> None:
    """The order to load and the order for the same step come at once, while the first fetch still has its donors."""
    engine = Engine(5)
    keeper = keeper_of(engine, tmp_path / "checkpoints")
    engine.buckets = engine.whole_buckets = engine.first_round = engine.shared_buckets = 1  # type: ignore[attr-defined]
    SumsFile.write(before := io.BytesIO(), 1, [b"the sums before the rollback"])
    SumsFile.write(after := io.BytesIO(), 1, [b"the sums after it"])
    fetch_sums = FetchSums(StageIndex(0), 7, "digest", (ONE, TWO))

    class Core:
        rolled_back = first_ended = False

        def handle(self, event: object, now: float) -> list[object]:
            match event:
                case Tick():
                    return [] if self.rolled_back else [fetch_sums]
                case Fetched() if not self.rolled_back:
                    self.rolled_back = True
                    return [LoadState(StageIndex(0), 0), fetch_sums]
                case SumsFetched():
                    return [Stop("fetched" if core.first_ended else "the first fetch still runs")]
            return []

        def next_wakeup(self) -> float:
            return 1e9 if core.rolled_back else 0.0

    async def fetch(donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        asked = PieceRequest.decode(request)
        assert asked is not None

        async def answer() -> AsyncGenerator[bytes, None]:
            data = after if core.rolled_back else before
            if not asked.count:
                yield Index.of(io.BytesIO(data.getvalue())).encode()
                return
            if data is before:
                driver.loop.post(Fetched(0))
                try:
                    await asyncio.Event().wait()
                finally:
                    core.first_ended = True
            yield data.getvalue()

        return answer()

    core: Any = Core()
    driver = StageDriver(core, EventLog(None, lambda: 0.0), Retention(tmp_path / "retention", 1 << 20))
    driver.attach(SimpleNamespace(), keeper)  # type: ignore[arg-type]
    keeper._incoming._fetch = fetch
    async with asyncio.timeout(20.0):
        assert await driver.run() == "fetched" and core.rolled_back
    assert await keeper._incoming.fetched_sums(0, 7) == after.getvalue()


async def test_loading_another_state_removes_the_fetched_sums(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(5), tmp_path / "checkpoints")
    (fetched := tmp_path / "incoming" / "sums-0-7").write_bytes(b"sums")
    await keeper.load(LoadState(StageIndex(0), 0))
    assert keeper._incoming._removing is not None
    await keeper._incoming._removing
    assert not fetched.exists()


async def test_saved_checkpoints_are_for_the_coordinator(tmp_path: Path) -> None:
    keeper = keeper_of(Engine(7), tmp_path)
    await keeper.save(7)
    service, request = Service(keeper, (ONE,)), CheckpointRequest(0, 7).encode()
    with pytest.raises(BulkError, match="only the coordinator may fetch saved checkpoints: ask for pieces"):
        await service.answer(TWO, request)
    sent = await service.answer(ONE, request)
    assert len(await sent.read()) == sent.total > HEADER_BYTES
    with pytest.raises(BulkError, match="checkpoint"):
        await service.answer(ONE, CheckpointRequest(0, 8).encode())


async def test_who_asks_for_a_copy_that_is_lost_to_a_move_hears_why(tmp_path: Path) -> None:
    keeper = keeper_of(engine := Engine(7), tmp_path)
    copying: Future[Any] = Future()
    engine.state.copied = lambda copy: copying  # type: ignore[method-assign]
    asked = asyncio.create_task(Service(keeper, (ONE,)).answer(TWO, PieceRequest(PieceKind.STATE, 0, 7, 0, 1).encode()))
    await asyncio.sleep(0)  # it waits for the copy
    copying.set_exception(StateFreed(7))
    with pytest.raises(BulkError, match=r"^the copy of version 7 was abandoned, because this peer gives up the stage$"):
        await asked


class Two:
    """A peer that fetches, and one that holds version 7 and is asked for it, also as if it were an archive."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper_module, "parameter_shapes", SHAPES)
        monkeypatch.setattr(incoming_module, "parameter_shapes", SHAPES)
        self.mine, self.theirs = Engine(7), Engine(7)
        for engine in (self.mine, self.theirs):
            engine.state.names = tuple(state_shapes(SHAPES(None, 0)))
        self.keeper, self.holder = keeper_of(self.mine, folder / "one"), keeper_of(self.theirs, folder / "two")
        self.events: list[Event] = []
        self.keeper._emit = self.keeper._incoming._emit = self.events.append
        self.keeper._incoming._fetch = self.fetch
        self.sent = 0

    async def fetch(self, donor: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        transfer = await Service(self.holder, (ONE,)).answer(ONE, request)

        async def chunks() -> AsyncGenerator[bytes, None]:
            async for chunk in transfer.chunks:
                self.sent += len(chunk)
                yield bytes(chunk)

        return chunks()

    def of(self, kind: type[Event]) -> Any:
        (found,) = [event for event in self.events if isinstance(event, kind)]
        return found


def SHAPES(model: object, stage: int) -> dict[str, tuple[int, ...]]:
    return {"w": (200_000,)}


async def test_one_donor_that_nobody_told_to_keep_a_copy_gives_its_state_as_several_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(tmp_path, monkeypatch)
    two.theirs.state.value = 2.0
    await two.keeper.load(LoadState(StageIndex(0), 7, (Donor(TWO, 0),)))
    assert two.mine.state.loaded is not None and torch.equal(
        two.mine.state.loaded["param/w"], torch.full((200_000,), 2.0)
    )
    assert two.theirs.state.snapshots == 1
    fetched = two.of(StateFetched)
    assert (fetched.stage, fetched.version, fetched.source) == (0, 7, "1 replica")
    assert two.of(Gathered).by_donor == {str(TWO): two.of(Gathered).nbytes} and two.of(Gathered).resumed == 0


@pytest.mark.parametrize("same", [True, False])
async def test_pieces_that_the_own_checkpoint_has_are_not_fetched(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback a version may have come out otherwise than it lies here."""
    two = Two(tmp_path, monkeypatch)
    await two.keeper.save(7)
    two.theirs.state.value = 1.0 if same else 2.0
    await two.keeper.load(LoadState(StageIndex(0), 7, (Donor(TWO, 0),)))
    assert two.mine.state.loaded is not None
    assert torch.equal(two.mine.state.loaded["param/w"], torch.full((200_000,), two.theirs.state.value))
    told = two.of(Gathered)
    assert (told.received == 0) is same and told.resumed == (pieces_in(told.nbytes) if same else 0)


@pytest.mark.parametrize("same", [True, False])
async def test_an_own_checkpoint_is_used_if_the_archive_has_the_same(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(tmp_path, monkeypatch)
    await two.keeper.save(7)
    two.theirs.state.value = 1.0 if same else 2.0
    await two.holder.save(7)
    await two.keeper.load(LoadState(StageIndex(0), 7, archive=TWO))
    assert two.of(StateFetched).source == ("own checkpoint" if same else "archive")
    assert two.mine.state.loaded is not None
    assert torch.equal(two.mine.state.loaded["param/w"], torch.full((200_000,), two.theirs.state.value))
    assert (two.sent == HEADER_BYTES) is same


async def test_an_order_that_names_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="names no source of version 3 of stage 0"):
        await keeper_of(Engine(0), tmp_path).load(LoadState(StageIndex(0), 3))


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
    assert await keeper.saved(CheckpointRequest(0, 7)).read(), "the archive may have it"
