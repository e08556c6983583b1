"""What is kept for those who take up a stage leaves nothing on the disk that nobody knows of."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.stage import lending as lending_module
from peers.stage.lending import Lending
from swarm.compute.held import HeldState, Holds
from swarm.events import CheckpointRefused, Event, StepHeldUp
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Lend, StoreSum
from swarm.state.error import StateError
from swarm.state.pieces import Index
from swarm.state.shard import open_shard

BUCKETS = 4


class Engine:
    buckets, version = BUCKETS, 5

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        raise AssertionError("nobody loads")

    def written(self, attempt: Attempt) -> Future[list[bytes]]:
        raise AssertionError("the sums were stored")


def with_sums(folder: Path, step: int) -> tuple[Lending, list[Event]]:
    """The sums of a step are decided, and on their way to the disk."""
    events: list[Event] = []
    lending = Lending("a" * 64, folder, events.append)
    pass_id = PassId(Term(1), StepNumber(step))
    lending.lend(Lend(pass_id, (), step, sums=True), 0, Engine(), may_copy=True)
    attempt = Attempt(pass_id, StageIndex(0), 1)
    for bucket in range(BUCKETS):
        lending.stored(StoreSum(attempt, bucket, bytes(100_000)))
    lending.decided(attempt, Engine(), whole=True)
    return lending, events


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_sums_that_are_forgotten_while_they_are_written_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = threading.Event(), Lending._write
    written: list[Path | None] = []

    def held(self: Lending, buckets: list[bytes], step: int) -> Any:
        assert go_on.wait(20)
        lent = write(self, buckets, step)
        written.append(lent.path)
        return lent

    monkeypatch.setattr(Lending, "_write", held)
    lending, _ = with_sums(tmp_path / "lent", 5)
    await asyncio.sleep(0)
    lending.clear()
    go_on.set()
    await until(lambda: bool(written) and not list((tmp_path / "lent").iterdir()))


class Holding(Engine):
    """Holds a state of one number."""

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
    lending, folder, engine = Lending("a" * 64, tmp_path / "lent", events.append), tmp_path / "lent", Holding()
    lending.lend(Lend(PassId(Term(1), StepNumber(5)), (5,), 5, sums=False), 0, engine, may_copy=True)
    await until(lambda: bool(list(folder.iterdir())))
    (path,) = folder.iterdir()
    index = Index.decode(await answered(lending, PieceRequest(PieceKind.STATE, 0, 5)), 10_000, "x")
    whole = await lending.answer(PieceRequest(PieceKind.STATE, 0, 5, 0, 1), 0, 5)
    assert whole == path.read_bytes() and index.fits(0, whole)
    assert torch.equal(open_shard(path, "x").tensors["param/w"], torch.ones(3))
    assert events == [StepHeldUp(0, 5, 3.0)], "who waits says so"
    lending.lend(Lend(PassId(Term(1), StepNumber(6)), (), 6, sums=False), 0, engine, may_copy=True)
    await until(lambda: not list(folder.iterdir()))


async def test_a_version_that_is_over_is_not_copied(tmp_path: Path) -> None:
    events: list[Event] = []
    lending = Lending("a" * 64, tmp_path / "lent", events.append)
    lending.lend(Lend(PassId(Term(1), StepNumber(4)), (4,), 4, sums=False), 0, Holding(), may_copy=True)
    await until(lambda: bool(events))
    assert "version 4 is over, this peer is at 5" in str(events)
    assert not lending.copies and not list((tmp_path / "lent").iterdir())


async def answered(lending: Lending, request: PieceRequest) -> bytes:
    async with asyncio.timeout(20):
        while (found := await lending.answer(request, 0, 5)) == lending_module.NOT_YET:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def test_a_full_disk_is_told_and_does_not_stay_full_of_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(buckets: list[bytes]) -> Any:
        yield b"the first part"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lending_module.SumsFile, "parts", parts)
    lending, events = with_sums(tmp_path / "lent", 5)
    await until(lambda: bool(events))
    (told,) = events
    assert isinstance(told, CheckpointRefused) and "No space left" in told.reason
    assert not list((tmp_path / "lent").iterdir())
    answer = await lending.answer(PieceRequest(PieceKind.SUMS, 0, 5), 0, 6)
    assert answer == lending_module.NOT_KEPT
