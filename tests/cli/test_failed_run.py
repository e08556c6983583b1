"""A core that gives up ends its process as failed: exit code 4, with the reason in its event log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers.cli import is_user_error
from peers.coordinator.driver import CoordinatorDriver
from peers.coordinator.record import RecordError
from peers.runtime.core_loop import CoreFault, exit_code
from peers.stage.driver import StageDriver
from peers.stage.retention import Retention
from swarm.compute.held import StateFreed
from swarm.events import CheckpointRefused, EventLog, ProcessStopped, read_log
from swarm.protocol.coordinator.io import WriteTerm
from swarm.protocol.ids import Actor, StageIndex, Term
from swarm.protocol.io import Stop, Tick
from swarm.protocol.peer.io import LoadState, MemoryShort, SaveCheckpoint, StateFailed
from swarm.state.error import StateError


class Ending:
    """A core that stops at once."""

    def __init__(self, failed: bool) -> None:
        self._stop = Stop("microbatch 1 of step 0 has failed on two peers", failed)

    def handle(self, event: object, now: float) -> list[Stop]:
        return [self._stop]

    def next_wakeup(self) -> float:
        return 0.0


def stage(core: Any, log: EventLog, folder: Path) -> StageDriver:
    driver = StageDriver(core, log, Retention(folder / "retention", 1 << 20))
    driver.attach(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    return driver


def coordinator(core: Any, log: EventLog, folder: Path) -> CoordinatorDriver:
    record: Any = SimpleNamespace(close=lambda: None)
    unused: Any = None
    driver = CoordinatorDriver(core, unused, unused, record, unused, log)
    driver.attach(SimpleNamespace(bulk=None))  # type: ignore[arg-type]
    return driver


@pytest.mark.parametrize("driver", [stage, coordinator])
@pytest.mark.parametrize(("failed", "code"), [(True, 4), (False, 0)])
def test_the_exit_code_says_whether_the_run_failed(
    driver: Callable[[Any, EventLog, Path], Any], failed: bool, code: int, tmp_path: Path
) -> None:
    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)

    async def process() -> str:
        return str(await driver(Ending(failed), log, tmp_path).run())

    assert exit_code(process()) == code
    log.close()
    events = [event for _, event in read_log(tmp_path / "events.jsonl")]
    assert events == [ProcessStopped("microbatch 1 of step 0 has failed on two peers")]


def test_a_record_that_cannot_be_written_ends_the_coordinator_with_its_reason(tmp_path: Path) -> None:
    class Deciding(Ending):
        def handle(self, event: object, now: float) -> list[Any]:
            return [WriteTerm(Term(1), None)]

    def full(term: int, rollback_to: int | None) -> None:
        raise RecordError("decisions.sqlite cannot be used now: database or disk is full")

    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    record: Any = SimpleNamespace(close=lambda: None, write_term=full)
    core: Any = Deciding(True)
    unused: Any = None

    async def process() -> str:
        driver = CoordinatorDriver(core, unused, unused, record, unused, log)
        driver.attach(SimpleNamespace(bulk=None))  # type: ignore[arg-type]
        return await driver.run()

    assert exit_code(process()) == 2, "an error that the user can fix"
    log.close()
    (event,) = (event for _, event in read_log(tmp_path / "events.jsonl"))
    assert event == ProcessStopped("decisions.sqlite cannot be used now: database or disk is full")


def test_an_error_that_escapes_a_core_is_a_bug_of_ours_not_the_users(tmp_path: Path) -> None:
    class Broken(Ending):
        def handle(self, event: object, now: float) -> list[Stop]:
            raise StateError("a shard", "is torn")

    async def process() -> None:
        await stage(Broken(True), EventLog(None, lambda: 0.0), tmp_path).run()

    with pytest.raises(CoreFault, match="StateError at Tick: a shard: is torn") as caught:
        asyncio.run(process())
    assert not is_user_error(caught.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StateFreed(3), []),
        (StateError("3.draft", "no space"), ["the checkpoint of version 3 cannot be written: no space"]),
    ],
)
async def test_a_checkpoint_that_is_lost_to_a_move_is_no_trouble_to_tell(
    error: Exception, told: list[str], tmp_path: Path
) -> None:
    async def fails(version: int, proven: int) -> str:
        raise error

    log, troubles = EventLog(tmp_path / "events.jsonl", lambda: 0.0), list[str]()
    core: Any = Ending(False)
    driver = StageDriver(core, log, Retention(tmp_path / "retention", 1 << 20))
    driver.attach(SimpleNamespace(), SimpleNamespace(save=fails))  # type: ignore[arg-type]
    driver.reports = SimpleNamespace(trouble=troubles.append)  # type: ignore[assignment]
    await driver._save(SaveCheckpoint(3))
    log.close()
    ((_, refused),) = read_log(tmp_path / "events.jsonl")
    assert isinstance(refused, CheckpointRefused) and refused.reason in str(error)
    assert troubles == told


@pytest.mark.parametrize("order", [LoadState(StageIndex(0), 3, archive=Actor("coordinator", 0)), SaveCheckpoint(3)])
async def test_no_memory_for_a_state_does_not_end_the_process(
    order: LoadState | SaveCheckpoint, tmp_path: Path
) -> None:
    """The core hears of it, and so does the coordinator; an error that is not of memory is a bug, and is shown."""

    async def starved(*args: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: …")

    heard: list[object] = []

    class Core:
        def handle(self, event: object, now: float) -> list[object]:
            heard.append(event)
            done = isinstance(event, MemoryShort if isinstance(order, SaveCheckpoint) else StateFailed)
            return [Stop("told")] if done else [order] if isinstance(event, Tick) else []

        def next_wakeup(self) -> float:
            return 0.0 if not heard else 1e9

    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    driver = StageDriver(Core(), log, Retention(tmp_path / "retention", 1 << 20))  # type: ignore[arg-type]
    driver.attach(SimpleNamespace(), SimpleNamespace(load=starved, save=starved, close=lambda: None))  # type: ignore[arg-type]
    assert await driver.run() == "told"
    (short,) = [event for event in heard if isinstance(event, MemoryShort)]
    assert "DefaultCPUAllocator" in short.what
    log.close()
