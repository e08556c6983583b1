"""What the coordinator's driver has fetched into the archive, and what it does with it when the run goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers.coordinator.collector import Collector
from peers.coordinator.driver import CoordinatorDriver
from peers.coordinator.group_record import GroupRecord
from peers.coordinator.record import DecisionRecord
from swarm.events import EventLog
from swarm.protocol.coordinator.io import ArchiveStored, CollectCheckpoint, TermWritten, WriteTerm
from swarm.protocol.ids import Actor, Term
from swarm.protocol.io import Stop
from swarm.protocol.messages import TermEntry
from swarm.protocol.raft.io import WriteGroup
from swarm.state.archive import Archive

RUN = "ab" * 32


class Echo:
    """A core that orders what it is told to order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def handle(self, event: Any, now: float) -> list[Any]:
        self.told.append(event)
        return [event] if isinstance(event, CollectCheckpoint | WriteTerm | WriteGroup | Stop) else []

    def next_wakeup(self) -> float:
        return float("inf")


class Driven:
    """A driver of an `Echo`, which fetches as `collect` says. It runs within `async with`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, collect: Any, archive: Any = None, record: Any = None) -> None:
        monkeypatch.setattr(Collector, "collect", lambda _collector, order: collect(order))
        self.core: Any = Echo()
        unused: Any = None
        nothing: Any = SimpleNamespace(close=lambda: None, voids=lambda version, term: False)
        self.driver = CoordinatorDriver(
            self.core, unused, unused, record or nothing, archive, EventLog(None, lambda: 0.0)
        )
        self.driver.attach(SimpleNamespace(bulk=None))  # type: ignore[arg-type]
        self.post: Any = self.driver.loop.post

    async def __aenter__(self) -> Driven:
        self._running = asyncio.create_task(self.driver.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.post(Stop("enough", False))
        await self._running

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_the_end_of_an_older_collection_does_not_unmark_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = {10: asyncio.Event(), 20: asyncio.Event()}
    begun: list[int] = []

    async def collecting(order: CollectCheckpoint) -> tuple[str, ...]:
        begun.append(order.version)
        await gates[order.version].wait()
        return ()

    async with Driven(monkeypatch, collecting) as driven:
        for version in gates:
            driven.post(CollectCheckpoint(version, Term(1), (), ()))
        await driven.until(lambda: begun == [10, 20])
        gates[10].set()
        await driven.until(lambda: 10 not in driven.driver._collecting)
        assert list(driven.driver._collecting) == [20]


async def test_the_digests_that_were_stored_are_told_and_not_those_of_an_order_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()

    async def collecting(order: CollectCheckpoint) -> tuple[str, ...]:
        await gate.wait()
        return ("digest of the contents",)

    first = CollectCheckpoint(10, Term(1), ((Actor("one", 1),),), ("hash of one",))
    second = CollectCheckpoint(10, Term(1), ((Actor("two", 1),),), ("hash of two",))
    async with Driven(monkeypatch, collecting) as driven:
        driven.post(first)
        driven.post(second)
        await driven.until(lambda: second in driven.core.told)
        gate.set()
        await driven.until(lambda: 10 not in driven.driver._collecting)
    stored = [event for event in driven.core.told if isinstance(event, ArchiveStored)]
    assert stored == [ArchiveStored(10, Term(1), first.digests)]


async def test_a_rollback_ends_what_is_collected_of_the_history_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def collecting(order: CollectCheckpoint) -> tuple[str, ...]:
        (archive.directory / f"{order.version:08d}").mkdir()
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ()

    archive = Archive(tmp_path, RUN, 1, 3)
    (tmp_path / f"{10:08d}").mkdir()
    record = DecisionRecord(tmp_path / "decisions.sqlite", RUN)
    async with Driven(monkeypatch, collecting, archive, record) as driven:
        driven.post(CollectCheckpoint(20, Term(1), (), ()))
        await driven.until(begun.is_set)
        driven.post(WriteTerm(2, 10))
        await driven.until(lambda: TermWritten(Term(2)) in driven.core.told)
        assert ended.is_set() and not driven.driver._collecting
    assert (tmp_path / f"{10:08d}").exists() and not (tmp_path / f"{20:08d}").exists()
    assert DecisionRecord(tmp_path / "decisions.sqlite", RUN).unfinished_rollback is None


@pytest.mark.parametrize("several", [False, True], ids=["alone", "in a group"])
async def test_what_was_ordered_before_a_rollback_is_not_collected_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    cancelled, gate = asyncio.Event(), asyncio.Event()
    done: list[CollectCheckpoint | int] = []

    async def collecting(order: CollectCheckpoint) -> tuple[str, ...]:
        done.append(order)
        if order == early:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
                await gate.wait()  # as a file that is being renamed
        return ()

    archive = Archive(tmp_path, RUN, 1, 3)
    monkeypatch.setattr(archive, "forget_after", done.append)
    early, shared, void = (CollectCheckpoint(version, Term(1), (), ()) for version in (40, 10, 20))
    new = CollectCheckpoint(30, Term(2), (), ())
    record = (GroupRecord if several else DecisionRecord)(tmp_path / "decisions.sqlite", RUN)
    back = WriteGroup(1, 1, "", 1, (TermEntry(1, Term(2), 10),), 1) if several else WriteTerm(2, 10)
    async with Driven(monkeypatch, collecting, archive, record) as driven:
        driven.post(early)
        await driven.until(lambda: done == [early])
        driven.post(back)
        await driven.until(cancelled.is_set)
        for order in (shared, void, new):  # too late to be cancelled
            driven.post(order)
        await driven.until(lambda: new in driven.core.told)
        assert await driven.driver._recorded(lambda: None), "whatever does not wait is over"
        gate.set()
        await driven.until(lambda: new in done and not driven.driver._collecting)
    assert done == [early, 10, shared, new], "version 10 belongs to both histories"
