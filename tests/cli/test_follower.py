"""An observer's copies of the logs: what the dashboard is told when they cannot grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from peers.coordinator.mirror import chunk_of
from peers.observer.process import Follower
from peers.run.home import Home
from peers.runtime.observer_request import LOG, MAX_PART_BYTES, STATUS, ObserverRequest, encode_part
from swarm.events import EventLog, RunPaused

COORDINATOR = "12D3KooWtheCoordinator"


class Answering:
    """A visit to one coordinator, which answers while it is `alive`."""

    coordinators = (COORDINATOR,)

    def __init__(self, log: Path) -> None:
        self._log = log
        self.alive = True
        self.asked: list[str] = []

    async def with_any(self, work: Callable[[str], Awaitable[None]]) -> None:
        await work(COORDINATOR)

    async def ask_one(self, peer: str, raw: bytes, max_bytes: int = 0) -> bytes:
        if not self.alive:
            raise ConnectionError("it is gone")
        request = ObserverRequest.decode(raw)
        assert request is not None
        self.asked.append(request.what)
        return encode_part(chunk_of(self._log, request.want, MAX_PART_BYTES)) if request.what == LOG else b"{}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_full_copy_is_told_and_a_coordinator_that_dies_then_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("peers.observer.process.POLL_S", 0.01)
    monkeypatch.setattr("peers.coordinator.mirror.MAX_COPY", 1000)
    source, home = tmp_path / "events.jsonl", Home(tmp_path / "observer")
    home.path.mkdir()
    visit: Any = Answering(source)
    log = EventLog(source, lambda: 1.0)
    log.append(RunPaused("x" * 1200))
    following = asyncio.create_task(Follower(visit, home).run())
    told = lambda: home.observing.read_text() if home.observing.exists() else ""  # noqa: E731
    full = "the copy of the log of coordinator …inator does not grow: it has reached 1.0 kB"
    await until(lambda: told() == full)
    visit.asked.clear()
    log.append(RunPaused("later"))
    await until(lambda: len(visit.asked) > 3)
    assert set(visit.asked) == {STATUS}, "a small request shows that the coordinator is there"
    visit.alive = False
    await until(lambda: "no coordinator has answered since" in told())
    visit.alive = True
    await until(lambda: told() == full)
    monkeypatch.setattr("peers.coordinator.mirror.MAX_COPY", 1 << 20)
    await until(lambda: told() == "")
    assert (home.mirrors / f"{COORDINATOR}.jsonl").read_bytes() == source.read_bytes()
    following.cancel()
    log.close()
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 3 and printed[0] == printed[2] == full
