"""Scenarios on an emulated internet, by `swarm-peer chaos`: each must show what its file expects."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from benchmarks.scenarios import IN_CI, IN_LONG_CI
from peers.chaos.namespace import why_not

SCENARIOS = Path(__file__).parent / "scenarios"
FROM_THE_START = ("far-away", "liars", "nat-nobody")
"""Nothing befalls these later: peers lie, or have such lines, all the time."""
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.xdist_group("internet"),  # hosts of their own: beside other swarms, not after them
]


@dataclass(frozen=True)
class Shorter:
    """A scenario with the same faults in fewer steps. Their pace keeps the time that a recovery needs."""

    steps: int
    pace: tuple[str, str] | None = None
    microbatches: int | None = None
    faults: dict[str, dict[str, int | str]] = field(default_factory=dict)
    """By name of a fault, what is different: its step, count, or how bad it is."""
    without: tuple[str, ...] = ()
    """Faults that are left out, with what is expected of them."""


LONG_PACE = ("160ms", "320ms")
"""A step of two replicas takes a second, with four microbatches."""
SHORTER = {
    "clock-skew": Shorter(24, ("100ms", "200ms"), 4, {"jump": {"after_step": 3}, "newcomer": {"after_step": 6}}),
    "hang-and-partition": Shorter(32, LONG_PACE, 4, {"hang": {"after_step": 3}}),
    "kills": Shorter(24, ("40ms", "80ms"), 8, {"in forward": {"count": 2}, "in backward": {"count": 8}}),
    "nat-joins": Shorter(32, ("120ms", "240ms"), 4, {"more": {"after_step": 3}, "kill": {"after_step": 14}}),
    "partition": Shorter(32, LONG_PACE, 4),
    "slow-peer": Shorter(
        16,
        microbatches=8,
        faults={
            "four times slower": {"after_step": 5},
            "its link gets worse": {"after_step": 10},
        },
    ),
}
"""`python -m benchmarks.faults` plays the files as they are."""
ONE_KILL = Shorter(12, ("40ms", "80ms"), 8, {"in forward": {"count": 2}}, without=("in backward", "in reduce"))

NAMES = [*IN_CI, *(pytest.param(name, marks=pytest.mark.long) for name in IN_LONG_CI)]


class Plays:
    """One `swarm-peer chaos` for many scenarios: to import everything and to warm up costs as much as a short one."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self._names = names
        self._told: dict[str, dict[str, Any]] = {}
        self._said = folder / "stderr"
        command = words({name: SHORTER.get(name) for name in names}, folder / "runs")
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)

    def report(self, name: str) -> dict[str, Any]:
        """Wait until a scenario has been played."""
        assert self._process.stdout is not None
        while name not in self._told:
            line = self._process.stdout.readline()
            assert line, f"it ended before {name} was played:\n{self._said.read_text(errors='replace')[-4000:]}"
            report = json.loads(line)
            self._told[report["scenario"]] = report
        return self._told[name]

    def close(self) -> None:
        """A play that is not over ends like by a supervisor, with all its processes."""
        self._process.terminate()
        self._process.communicate()


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plays]:
    asked = [item for item in request.session.items if getattr(item, "originalname", "") == test_as_expected.__name__]
    made = Plays([item.callspec.params["name"] for item in asked], tmp_path_factory.mktemp("internet"))
    yield made
    made.close()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("name", NAMES)
def test_as_expected(name: str, plays: Plays) -> None:
    report = plays.report(name)
    good(report)
    assert report["finished"] or name == "soak-short"
    assert report["episodes"] or name in FROM_THE_START, "no fault struck"


def test_without_root_hosts_are_ports_of_a_relay(tmp_path: Path) -> None:
    """One fault shows that hosts are told apart; tests/swarm/test_faults.py has the other two of that scenario."""
    command = words({"kills": ONE_KILL}, tmp_path / "runs", "--network=relay")
    played = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert played.returncode in (0, 3), played.stdout[-2000:] + played.stderr[-4000:]
    report = json.loads(played.stdout)
    good(report)
    assert played.returncode == 0
    assert report["finished"] and report["episodes"]


def words(scenarios: Mapping[str, Shorter | None], folder: Path, *options: str) -> list[str]:
    files = [str(scenario(name, shorter, folder.parent)) for name, shorter in scenarios.items()]
    return [sys.executable, "-P", "-m", "peers", "chaos", *files, "--json", "--dir", str(folder), *options]


def scenario(name: str, shorter: Shorter | None, folder: Path) -> Path:
    """Its file, or a shorter one in `folder`."""
    path = SCENARIOS / f"{name}.toml"
    if shorter is None:
        return path
    told = tomllib.loads(path.read_text())
    counts = {"run.steps": shorter.steps, "batch.microbatches": shorter.microbatches}
    others = [text for text in told["set"] if text.partition("=")[0] not in {key for key, n in counts.items() if n}]
    told["set"] = [*others, *(f"{key}={count}" for key, count in counts.items() if count)]
    if shorter.pace:
        told["pace"] = list(shorter.pace)
    told["fault"] = [fault for fault in told["fault"] if fault["name"] not in shorter.without]
    expected = told.get("expect", {}).get("event", [])
    expected[:] = [each for each in expected if each.get("after", "").split(", over")[0] not in shorter.without]
    faults = {fault["name"]: fault for fault in told["fault"]}
    for fault, changed in shorter.faults.items():
        assert changed.keys() <= faults[fault].keys(), f"{name}: {fault} has no {', '.join(changed)}"
        faults[fault].update(changed)
    short = folder / path.name
    short.write_text(tomli_w.dumps(told))
    return short


def good(report: dict[str, Any]) -> None:
    """All went as the file expects, and came to the digests of one process."""
    assert report["failures"] == []
    assert report["good"] and report["equal"]
