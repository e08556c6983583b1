"""Copies of a peer's state for those who ask for it: shared, few, rare, and never of a history before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peers.runtime.piece_request import NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from peers.stage import state_copies
from peers.stage.lending import Lending
from peers.stage.state_copies import MAX_REST_S
from swarm.compute.held import HeldState, Holds
from swarm.events import CheckpointRefused, Event
from swarm.net.bulk import PATIENCE_S
from swarm.protocol.ids import PassId, StepNumber, Term
from swarm.protocol.peer.io import Lend
from swarm.state.error import StateError


class State:
    """One number; counts the copies that were begun. One takes `copying_s`."""

    def __init__(self, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version: int | None = version
        self.value = 1.0
        self.copying_s = 0.0
        self.snapshots = 0
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, monotonic_ns=time.monotonic_ns)
        monkeypatch.setattr(state_copies, "time", clock)

    def copied(self, copy: Callable[[HeldState], Any]) -> Future[Any]:
        self.snapshots += 1
        self.now += self.copying_s
        holds, future = Holds(), Future[Any]()
        assert self.version is not None
        holds.add(held := HeldState(holds, {"param/w": torch.full((3,), self.value)}, self.version, 0, "00" * 32, ""))
        try:
            future.set_result(copy(held))
        except StateError as error:
            future.set_exception(error)
        return future


class Lender:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, version: int = 7) -> None:
        self.events: list[Event] = []
        self.state = State(version, monkeypatch)
        self.engine: Any = SimpleNamespace(state=self.state)  # no step is decided, so nothing else of it is used
        self.folder = folder / "lent"
        self.lending = Lending("a" * 64, self.folder, self.events.append)

    async def index(self, version: int) -> bytes:
        return await self.lending.answer(PieceRequest(PieceKind.STATE, 0, version), "a peer", 0, self.engine)

    async def fetch(self, version: int) -> bytes:
        """The state, as long as it takes to copy it."""
        async with asyncio.timeout(60):
            while await self.index(version) == NOT_YET:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        request = PieceRequest(PieceKind.STATE, 0, version, 0, 1)
        return await self.lending.answer(request, "a peer", 0, self.engine)

    def order(self, version: int, *versions: int) -> None:
        self.lending.lend(Lend(PassId(Term(1), StepNumber(version)), versions, 0, sums=False), 0, self.engine)


@pytest.fixture
def lender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lender:
    return Lender(tmp_path, monkeypatch)


async def test_all_who_ask_for_a_version_share_a_copy_that_stays_when_it_is_over(lender: Lender) -> None:
    first, other = await asyncio.gather(lender.fetch(7), lender.fetch(7))
    assert first == other != NOT_KEPT and lender.state.snapshots == 1
    lender.state.version = 8
    assert await lender.fetch(7) == first, "it trains on meanwhile"
    assert await lender.index(6) == NOT_KEPT and await lender.index(9) == NOT_YET
    assert lender.state.snapshots == 1
    assert await lender.fetch(8) and lender.state.snapshots == 2


async def test_a_copy_of_before_another_state_was_loaded_is_given_to_nobody(lender: Lender) -> None:
    before = await lender.fetch(7)
    lender.lending.clear()
    lender.state.value = 2.0
    assert await lender.fetch(7) != before and lender.state.snapshots == 2


async def test_a_stage_is_not_asked_for_the_copy_of_another(lender: Lender) -> None:
    await lender.fetch(7)
    request = PieceRequest(PieceKind.STATE, 0, 7)
    assert await lender.lending.answer(request, "a peer", 1, lender.engine) == NOT_KEPT
    assert await lender.lending.answer(request, "a peer", None, None) == NOT_KEPT
    elsewhere = PieceRequest(PieceKind.STATE, 1, 7)
    assert await lender.lending.answer(elsewhere, "a peer", 1, lender.engine) == NOT_YET, "a new copy"
    assert lender.state.snapshots == 2


async def test_a_peer_is_not_kept_from_training_by_copies(lender: Lender) -> None:
    lender.state.copying_s = 0.5
    await lender.fetch(7)
    lender.state.version = 8
    for _ in range(3):
        assert await lender.index(8) == NOT_YET
    lender.order(8, 8)
    assert lender.state.snapshots == 1, "a tenth of its time at most"
    lender.state.now += 5.0
    assert await lender.fetch(8) and lender.state.snapshots == 2
    lender.lending.clear()
    lender.state.version, lender.state.copying_s = 9, 3600.0
    lender.state.now += 5.0
    await lender.fetch(9)
    lender.state.version = 10
    lender.state.now += MAX_REST_S
    assert await lender.fetch(10) != NOT_KEPT


async def test_a_version_that_is_over_when_its_turn_comes_is_not_kept(lender: Lender) -> None:
    copied = lender.state.copied

    def late(copy: Callable[[HeldState], Any]) -> Future[Any]:
        lender.state.version = 8
        return copied(copy)

    lender.state.copied = late  # type: ignore[method-assign]
    assert await lender.fetch(7) == NOT_KEPT
    (told,) = lender.events
    assert (
        isinstance(told, CheckpointRefused) and "version 7 is no longer held: this peer is at version 8" in told.reason
    )
    assert not list(lender.folder.iterdir()) and not lender.lending.copies


async def test_two_copies_that_were_asked_for_are_held_and_who_is_too_slow_makes_room(lender: Lender) -> None:
    for version in (7, 8):
        lender.state.version = version
        await lender.fetch(version)
    lender.state.version = 9
    assert await lender.index(9) == NOT_YET and lender.state.snapshots == 2, "ask another replica"
    lender.order(9, 9)
    assert lender.state.snapshots == 3, "listeners have copies of their own"
    lender.state.version = 10
    lender.state.now += PATIENCE_S + 1.0
    assert await lender.fetch(10) != NOT_KEPT and lender.lending.copies == [8, 9, 10]


async def test_an_order_leaves_a_copy_that_was_asked_for_and_makes_one_of_its_own_from_it(lender: Lender) -> None:
    await lender.fetch(7)
    lender.order(8)
    assert lender.lending.copies == [7]
    lender.order(7, 7)
    assert lender.state.snapshots == 1
    lender.order(8)
    assert not lender.lending.copies, "it was an ordered one by then"


async def test_a_copy_that_nobody_asks_for_any_more_is_removed(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copies, "UNUSED_S", 0.05)
    await lender.fetch(7)
    lender.state.now += 0.04
    await lender.fetch(7)
    await asyncio.sleep(0.2)  # it was looked at several times, and is in use by this peer's clock
    assert lender.lending.copies == [7]
    lender.state.now += 0.06
    async with asyncio.timeout(60):
        while lender.lending.copies or list(lender.folder.iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert lender.state.snapshots == 1
