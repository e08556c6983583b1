"""A disk that is full: the peer leaves the pass and says where, and does not stall."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peers.stage.driver import StageDriver
from peers.stage.retention import Retention, Spilled
from swarm.events import EventLog
from swarm.protocol.ids import Microbatch, PassId, StepNumber, Term
from swarm.protocol.io import Stop
from swarm.protocol.peer.io import BackwardDone, ComputeFailed, ForwardDone

PASS = PassId(Term(1), StepNumber(2))


class Listener:
    """A core that writes down what it is told, and stops after `count` inputs."""

    def __init__(self, count: int) -> None:
        self.heard: list[Any] = []
        self._count = count

    def handle(self, event: object, now: float) -> list[Stop]:
        self.heard.append(event)
        return [Stop("heard enough", False)] if len(self.heard) == self._count else []

    def next_wakeup(self) -> float:
        return float("inf")


def hear(folder: Path, *computed: Any) -> list[Any]:
    core: Any = Listener(len(computed))

    async def run() -> None:
        driver = StageDriver(core, EventLog(None, lambda: 0.0), Retention(folder, 0))
        driver.attach(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        for event in computed:
            driver.computed(event)
        async with asyncio.timeout(60.0):
            await driver.run()

    asyncio.run(run())
    return list(core.heard)


def test_a_frame_that_cannot_be_spilled_fails_this_peers_pass_and_no_microbatch(tmp_path: Path) -> None:
    obstacle = tmp_path / "retention"
    obstacle.write_bytes(b"a file where the folder should be")
    forward, backward = (kind(PASS, Microbatch(3), b"frame") for kind in (ForwardDone, BackwardDone))
    for heard in hear(obstacle, forward, backward):
        assert isinstance(heard, ComputeFailed) and heard.microbatch is None and heard.pass_id == PASS
        assert f"a frame cannot be kept in {obstacle}: " in heard.reason


def test_a_frame_that_is_computed_after_the_end_opens_no_file(tmp_path: Path) -> None:
    retention = Retention(tmp_path / "retention", 0)
    retention.close()
    kept = retention.keep(b"frame")
    assert retention.bytes_of(kept) is None and not retention.folder.exists()


def test_a_frame_beyond_the_budget_is_spilled(tmp_path: Path) -> None:
    (heard,) = hear(tmp_path / "retention", ForwardDone(PASS, Microbatch(3), b"frame"))
    assert heard.payload == Spilled(0, 0, 5)
