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

from peers.runtime.piece_request import Kind, PieceRequest
from peers.stage import lending as lending_module
from peers.stage.lending import Lending
from swarm.compute.optimizer import StageState
from swarm.events import CheckpointRefused, Event
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Lend, StoreSum

BUCKETS = 4


class Engine:
    buckets, version = BUCKETS, 5

    def snapshot(self) -> Future[StageState]:
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
    answer = await lending.answer(PieceRequest(Kind.SUMS, 0, 5), 0, 6)
    assert answer == lending_module.NOT_KEPT
