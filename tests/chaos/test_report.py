"""The report of a play: for every fault what was done about it, by whom, and what it cost."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from peers.chaos.director import Ended, Played, Struck
from peers.chaos.machine import EmulatedMachine, Seen
from peers.chaos.report import Report, report_of
from peers.chaos.scenario import Scenario, read
from peers.chaos.summary import show
from peers.chaos.table import Table
from swarm.events import CoordinatorAway, Event, PassOpened, ProcessStarted, RouteChanged, ShareChanged, StepDecided

TEXT = """
about = "Two peers, three faults."
peers = 2
[[fault]]
name = "pair"
do = "cut"
between = ["p0", "p1"]
at = "10s"
[[fault]]
name = "slow"
do = "slow"
who = "p1"
factor = 4
at = "20s"
[[fault]]
name = "gone"
do = "kill"
who = "p1"
at = "30s"
[expect]
finish = false
equal = false
"""


@pytest.fixture(autouse=True)
def without_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed here that they could be checked on."""
    monkeypatch.setattr("peers.chaos.report.check", lambda played: [])


def decided(step: int) -> StepDecided:
    return StepDecided(1, step, 1.0, 1.0, 1.0, 1, [], [])


def played(tmp_path: Path, *more: tuple[str, float, Event]) -> Played:
    """A step each second, the two of the last fault a second and a half. `more`: what somebody logs, and when."""
    scenario: Scenario = read(Table(tomllib.loads(TEXT), ""), tmp_path / "scenario.toml")
    nursery: Any = None
    machines = {name: EmulatedMachine(name, tmp_path, nursery, None, None) for name in ("coordinator", "p0", "p1")}
    found = Played(scenario, tmp_path, machines)
    machines["coordinator"].log.append(Seen(0.0, PassOpened("1:0", "train", [1, 1])))
    moments = [*(float(second) for second in range(1, 31)), 31.5, 33.0]
    machines["coordinator"].log += [Seen(at, decided(step)) for step, at in enumerate(moments)]
    for name in ("p0", "p1"):
        machines[name].lives.append(f"{name}.1")
        machines[name].log.append(Seen(-5.0, ProcessStarted("peer", f"{name}.1", "run", "0", None)))
    for name, at, event in more:
        machines[name].log.append(Seen(at, event))
        machines[name].log.sort(key=lambda seen: seen.at)
    found.struck = [Struck(fault, at) for fault, at in zip(scenario.faults, (10.2, 20.2, 30.2), strict=True)]
    found.ends = [Ended("p1", 30.2, -9)]
    found.first_step_at, found.ended_at, found.finished = 0.0, 33.0, True
    return found


def told(report: Report) -> list[list[str]]:
    return [[answer.text for answer in episode.answers] for episode in report.episodes]


def test_what_peers_do_by_themselves_is_told_with_their_names(tmp_path: Path) -> None:
    report = report_of(
        played(
            tmp_path,
            ("p0", 10.6, RouteChanged("p1.1", "coordinator.0", "connection lost")),
            ("coordinator", 22.5, ShareChanged("p1.1", 0, 0.1, 0.4, 2)),
            ("p1", 24.0, CoordinatorAway(2.0, 60.0, "no answer")),
        )
    )
    pair, slow, gone = told(report)
    assert pair == ["p0: p1 is reached through coordinator.0: connection lost"]
    assert slow[0] == "p1 needs 0.4 s per microbatch (was 0.1 s); it now does 2 microbatches of stage 0"
    assert slow[1].startswith("p1: the coordinator has been unreachable for 2 s (no answer)")
    assert gone == []


def test_a_fault_about_which_nothing_was_done_says_so_and_what_it_cost(tmp_path: Path) -> None:
    report = report_of(played(tmp_path))
    assert [episode.slowest for episode in report.episodes] == [1.0, 1.0, 1.5]
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    assert "nothing had to be done: the slowest step took 1.50 × the usual one" in out.getvalue()


def test_goodput_is_also_told_of_those_that_lived(tmp_path: Path) -> None:
    report = report_of(played(tmp_path))
    # both for 20 s after the first fault, one for the 2.8 s after that
    assert report.survivors == pytest.approx((22.8 + 20.0) / 22.8 / 2)
    assert report.goodput == pytest.approx(21.5 / 22.8)
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    assert (
        "0.94 of the goodput before the first fault; on average 0.94 of the peers were alive: 1.00 of what these peers"
        in out.getvalue()
    )
