"""The log's disk is full when a process ends: it still ends in order, with the reason and the exit code."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers.coordinator.driver import CoordinatorDriver
from peers.coordinator.process import CoordinatorProcess
from peers.runtime.core_loop import CoreLoop, ProcessFailed, RunFailed
from peers.stage.driver import StageDriver
from peers.stage.process import PeerProcess
from peers.stage.retention import Retention
from swarm.events import Event, EventLog
from swarm.protocol.ids import Actor
from swarm.protocol.io import Stop

WHY = "microbatch 1 of step 0 has failed on two peers"


class FullLog(EventLog):
    """A log whose disk is full from some event on."""

    def __init__(self, full: Callable[[Event], bool]) -> None:
        super().__init__(None, lambda: 0.0)
        self._full = full
        self.closed = False

    def append(self, event: Event) -> None:
        if self._full(event):
            raise OSError(errno.ENOSPC, "No space left on device: the event log cannot be written", "events.jsonl")
        super().append(event)

    def close(self) -> None:
        self.closed = True


class Ending:
    """A core that stops at once."""

    def __init__(self, failed: bool) -> None:
        self._stop = Stop(WHY, failed)
        self.offers = lambda means: None
        self.short, self.finished = "", False

    def handle(self, event: object, now: float) -> list[Stop]:
        return [self._stop]

    def next_wakeup(self) -> float:
        return 0.0


class Part:
    """Stands for a network, a keeper or a control socket. Writes down what is called."""

    def __init__(self, name: str, called: list[str]) -> None:
        self._name = name
        self._called = called
        self.traffic = SimpleNamespace(total=lambda: SimpleNamespace(sent=1, received=2))
        self.link_rates = SimpleNamespace(slowest=lambda count: ())

    async def _call(self, what: str) -> None:
        self._called.append(f"{self._name} {what}")

    async def start(self) -> None:
        await self._call("start")

    async def open(self) -> None:
        await self._call("open")

    async def until_read(self, _: object) -> None:
        await self._call("until_read")

    async def close(self) -> None:
        await self._call("close")


async def nothing(*_: object, **__: object) -> tuple[()]:
    return ()


def coordinator(log: FullLog, core: Any, called: list[str]) -> CoordinatorProcess:
    record: Any = SimpleNamespace(close=lambda: None)
    unused: Any = None
    process: Any = object.__new__(CoordinatorProcess)
    process.driver = CoordinatorDriver(core, unused, unused, record, unused, log)
    process.driver.attach(SimpleNamespace(bulk=None))
    process.log = log
    process._network, process._control = Part("network", called), Part("control", called)
    process._others, process._host = (), SimpleNamespace(addresses=nothing)
    process._listen_to_signals = process._log_start = lambda: None
    process._invite_with = lambda own: None
    process._background = lambda own: [nothing()]
    return process  # type: ignore[no-any-return]


CLOSED = ["control close", "network until_read", "network close"]


@pytest.mark.parametrize(("failed", "error"), [(False, OSError), (True, RunFailed)])
async def test_a_coordinator_cleans_up_and_a_failed_run_stays_failed(failed: bool, error: type[Exception]) -> None:
    log, called = FullLog(lambda event: True), list[str]()
    with pytest.raises(error):
        await coordinator(log, Ending(failed), called).run()
    assert called[-3:] == CLOSED and log.closed


async def test_a_coordinators_last_figure_that_does_not_fit_changes_nothing() -> None:
    log, called = FullLog(lambda event: event.kind == "TrafficMeasured"), list[str]()
    assert await coordinator(log, Ending(False), called).run() == WHY
    assert called[-3:] == CLOSED and log.closed


@pytest.mark.parametrize(("full", "error"), [("TrafficMeasured", None), ("ProcessStopped", OSError)])
async def test_a_peer_cleans_up(
    full: str, error: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, called = FullLog(lambda event: event.kind == full), list[str]()
    core: Any = Ending(False)
    network: Any = Part("network", called)
    keeper: Any = Part("keeper", called)
    process: Any = object.__new__(PeerProcess)
    process.driver = StageDriver(core, log, Retention(tmp_path / "retention", 1 << 20))
    process.driver.attach(network, keeper)
    process.log, process.core, process._network, process._keeper = log, core, network, keeper
    monkeypatch.setattr("peers.stage.process.measured_offer", nothing)
    process._ending = ExitStack()
    machine = SimpleNamespace(max_rate=None, measuring=asyncio.Lock(), finished=False)
    interrupts = SimpleNamespace(register=lambda leave: lambda: None)
    process._options = SimpleNamespace(machine=machine, interrupts=interrupts, patience_s=1.0, watched=None)
    process._me, process._group, process._coordinator = Actor("me", 1), (), None
    process._manifest, process._home = SimpleNamespace(hash="ab" * 32), None
    process._means = lambda offer: None
    process.directory = SimpleNamespace(run=nothing)
    process._fail_when_daemon_dies = process._measure = process._tell_links = process._wait_for = nothing
    with nullcontext() if error is None else pytest.raises(error):
        assert await process.run() == WHY
    assert called == ["network start", "network until_read", "network close", "keeper close"]


async def test_an_error_of_the_last_write_hides_no_failure() -> None:
    core: Any = Ending(False)
    for end, error in (("fail", ProcessFailed), ("give_up", RunFailed), ("stop", OSError)):
        loop: CoreLoop[Any, Any] = CoreLoop(core, lambda action: None)
        getattr(loop, end)("why")
        with pytest.raises(error):
            await loop.run_to_end(FullLog(lambda event: True))
