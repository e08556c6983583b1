"""What is kept for those who take up a stage leaves nothing on the disk that nobody knows of."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from peers.runtime import transfer_allowance
from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.stage import lending as lending_module
from peers.stage.lending import Lending
from swarm.buffer import Buffer
from swarm.compute.held import HeldState, Holds
from swarm.events import CheckpointRefused, Event, StepHeldUp
from swarm.net.bulk import Busy
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Lend, StoreSum
from swarm.state.error import StateError
from swarm.state.pieces import Index, SumsFile
from swarm.state.shard import open_shard

BUCKETS = 4


class State:
    version = 5

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        raise AssertionError("nobody loads")


class Engine:
    buckets, whole_buckets = BUCKETS, BUCKETS + 1

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()

    def written(self, attempt: Attempt, take: Callable[[Iterable[Buffer]], Any]) -> Future[Any]:
        raise AssertionError("the sums were stored")


def with_sums(folder: Path, step: int) -> tuple[Lending, list[Event]]:
    """The sums of a step are decided, and on their way to the disk."""
    events: list[Event] = []
    lending = Lending("a" * 64, folder, events.append)
    decide(lending, step, Engine())
    return lending, events


def decide(lending: Lending, step: int, engine: Engine, term: int = 1) -> None:
    """A step in which all sums have come."""
    pass_id = PassId(Term(term), StepNumber(step))
    lending.lend(Lend(pass_id, (), 5, sums=True), 0, engine)
    attempt = Attempt(pass_id, StageIndex(0), 1)
    for bucket in range(BUCKETS):
        lending.stored(StoreSum(attempt, bucket, bytes(100_000)))
    lending.decided(attempt, engine, whole=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_folder_on_another_disk_loses_only_what_an_earlier_process_lent(tmp_path: Path) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "lent"
    disk.mkdir()
    folder.symlink_to(disk)
    for name in ("state-5-1", "sums-5-2", "photo.jpg"):
        (disk / name).touch()
    Lending("a" * 64, folder, print)
    assert folder.is_symlink() and [each.name for each in disk.iterdir()] == ["photo.jpg"]


async def test_sums_that_are_forgotten_while_they_are_written_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = threading.Event(), SumsFile.write
    written: list[int] = []

    def held(file: BinaryIO, count: int, buckets: Iterable[Buffer]) -> None:
        assert go_on.wait(20)
        write(file, count, buckets)
        written.append(count)

    monkeypatch.setattr(SumsFile, "write", held)
    lending, _ = with_sums(tmp_path / "lent", 5)
    await asyncio.sleep(0)
    lending.clear()
    go_on.set()
    await until(lambda: bool(written) and not list((tmp_path / "lent").iterdir()))


class Writing(Engine):
    """Writes its sums as they are needed."""

    def written(self, attempt: Attempt, take: Callable[[Iterable[Buffer]], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(take(bytes([number]) for number in range(self.whole_buckets)))
        return done


async def test_sums_of_one_step_at_most_wait_in_memory_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = threading.Event(), SumsFile.write

    def slow(file: BinaryIO, count: int, buckets: Iterable[Buffer]) -> None:
        assert count != BUCKETS or go_on.wait(20)
        write(file, count, buckets)

    monkeypatch.setattr(SumsFile, "write", slow)
    lending, events = with_sums(tmp_path / "lent", 5)
    for step in (6, 7):
        decide(lending, step, Writing())
    for step in (6, 7):
        await answered(lending, PieceRequest(PieceKind.SUMS, 0, step))
        raw = await lending.answer(PieceRequest(PieceKind.SUMS, 0, step, 0, 1), "a peer", 0, Engine())
        assert b"".join(SumsFile.read(raw, BUCKETS + 1, "x")) == bytes(range(BUCKETS + 1))
    go_on.set()
    await answered(lending, PieceRequest(PieceKind.SUMS, 0, 5))
    raw = await lending.answer(PieceRequest(PieceKind.SUMS, 0, 5, 0, 2), "a peer", 0, Engine())
    assert [len(each) for each in SumsFile.read(raw, BUCKETS, "x")] == [100_000] * BUCKETS
    assert not events


class Copyable(State):
    """One number, which may be copied."""

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        holds, future = Holds(), Future()
        holds.add(held := HeldState(holds, {"param/w": torch.ones(3)}, self.version, 0, "00" * 32, ""))
        held.waited_s = 3.0
        try:
            future.set_result(copy(held))
        except StateError as error:
            future.set_exception(error)
        return future


async def test_a_copy_is_lent_from_its_file_which_goes_when_nobody_wants_that_version(tmp_path: Path) -> None:
    events: list[Event] = []
    lending, folder, engine = Lending("a" * 64, tmp_path / "lent", events.append), tmp_path / "lent", Engine(Copyable())
    lending.lend(Lend(PassId(Term(1), StepNumber(5)), (5,), 5, sums=False), 0, engine)
    await until(lambda: bool(list(folder.iterdir())))
    (path,) = folder.iterdir()
    index = Index.decode(await answered(lending, PieceRequest(PieceKind.STATE, 0, 5)), 10_000, "x")
    whole = await lending.answer(PieceRequest(PieceKind.STATE, 0, 5, 0, 1), "a peer", 0, engine)
    assert whole == path.read_bytes() and index.fits(0, whole)
    assert torch.equal(open_shard(path, "x").tensors["param/w"], torch.ones(3))
    assert events == [StepHeldUp(0, 5, 3.0)], "who waits says so"
    lending.lend(Lend(PassId(Term(1), StepNumber(6)), (), 6, sums=False), 0, engine)
    await until(lambda: not list(folder.iterdir()))


async def test_a_version_that_is_over_is_not_copied(tmp_path: Path) -> None:
    events: list[Event] = []
    lending = Lending("a" * 64, tmp_path / "lent", events.append)
    lending.lend(Lend(PassId(Term(1), StepNumber(4)), (4,), 4, sums=False), 0, Engine(Copyable()))
    await until(lambda: bool(events))
    assert "version 4 is no longer held: this peer is at version 5" in str(events)
    assert not lending.copies and not list((tmp_path / "lent").iterdir())


async def answered(lending: Lending, request: PieceRequest) -> bytes:
    async with asyncio.timeout(60):
        while (found := await lending.answer(request, "a peer", 0, Engine())) == lending_module.NOT_YET:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def test_a_full_disk_is_told_and_does_not_stay_full_of_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: BinaryIO, count: int, buckets: Iterable[Buffer]) -> None:
        file.write(b"the first part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SumsFile, "write", write)
    lending, events = with_sums(tmp_path / "lent", 5)
    await until(lambda: bool(events))
    (told,) = events
    assert isinstance(told, CheckpointRefused) and "No space left" in told.reason
    assert not list((tmp_path / "lent").iterdir())
    engine = Engine()
    engine.state.version = 6
    for peer in ("a peer", "another"):
        for _ in range(3):  # an answer may be lost
            with pytest.raises(StateError, match="the donor's disk: No space left on device"):
                await lending.answer(PieceRequest(PieceKind.SUMS, 0, 5), peer, 0, engine)
        answer = await lending.answer(PieceRequest(PieceKind.SUMS, 0, 5), peer, 0, engine)
        assert answer == lending_module.NOT_KEPT
    with pytest.raises(StateError, match="the donor's disk: No space left on device"):  # this step was not even tried
        await lending.answer(PieceRequest(PieceKind.SUMS, 0, 4), "a peer", 0, engine)


async def copies_of(lending: Lending, request: PieceRequest, engine: Engine) -> int:
    """How many times in a row a device gets the one run of pieces of a content."""
    await answered(lending, PieceRequest(request.kind, 0, request.version))
    for count in range(100):
        try:
            await lending.answer(request, "a peer", 0, engine)
        except Busy:
            return count
    raise AssertionError("it gets as many as it asks for")


async def test_sums_of_a_step_that_is_repeated_after_a_rollback_are_another_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_allowance, "LEAST_BYTES", 1)
    lending, _ = with_sums(tmp_path / "lent", 5)
    lending._allowance._clock = lambda: 0.0
    request = PieceRequest(PieceKind.SUMS, 0, 5, 0, 2)
    assert await copies_of(lending, request, Engine()) == transfer_allowance.COPIES
    for term in range(2, 8):
        lending.clear()  # the run went back, and this peer has loaded the state of then
        decide(lending, 5, Engine(), term)
        assert await copies_of(lending, request, Engine()) == transfer_allowance.COPIES


async def test_states_count_together_until_another_state_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_allowance, "LEAST_BYTES", 1)
    lending, engine = Lending("a" * 64, tmp_path / "lent", [].append), Engine(Copyable())
    lending._allowance._clock = lambda: 0.0
    for version in (5, 6):
        engine.state.version = version
        lending.lend(Lend(PassId(Term(1), StepNumber(version)), (5, 6), 5, sums=False), 0, engine)
        await until(lambda: len(lending.copies) > engine.state.version - 5)
        lending._copies._next_at = 0.0  # the next copy need not wait
    state = PieceRequest(PieceKind.STATE, 0, 5, 0, 1)
    assert await copies_of(lending, state, engine) == transfer_allowance.COPIES
    assert await copies_of(lending, PieceRequest(PieceKind.STATE, 0, 6, 0, 1), engine) == 0
    lending.clear()
    engine.state.version = 5
    lending._copies._next_at = 0.0
    lending.lend(Lend(PassId(Term(2), StepNumber(5)), (5,), 5, sums=False), 0, engine)
    assert await copies_of(lending, state, engine) == transfer_allowance.COPIES
