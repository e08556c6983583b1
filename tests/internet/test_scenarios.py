"""Scenarios on an emulated internet, by `swarm-peer chaos`: each must show what its file expects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios import IN_CI, IN_LONG_CI
from peers.chaos.namespace import why_not

SCENARIOS = Path(__file__).parent / "scenarios"
FROM_THE_START = ("far-away", "liars", "nat-nobody")
"""Nothing befalls these later: peers lie, or have such lines, all the time."""
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.xdist_group("internet"),  # hosts of their own: beside other swarms, not after them
]


NAMES = [*IN_CI, *(pytest.param(name, marks=pytest.mark.long) for name in IN_LONG_CI)]


class Plays:
    """One `swarm-peer chaos` for many scenarios: to import everything and to warm up costs as much as a short one."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self._names = names
        self._told: dict[str, dict[str, Any]] = {}
        self._said = folder / "stderr"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(words(names, folder / "runs"), stdout=subprocess.PIPE, stderr=said)

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
    command = words(["kills"], tmp_path, "--network=relay")
    played = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert played.returncode in (0, 3), played.stdout[-2000:] + played.stderr[-4000:]
    report = json.loads(played.stdout)
    good(report)
    assert played.returncode == 0
    assert report["finished"] and report["episodes"]


def words(names: list[str], folder: Path, *options: str) -> list[str]:
    files = [str(SCENARIOS / f"{name}.toml") for name in names]
    return [sys.executable, "-P", "-m", "peers", "chaos", *files, "--json", "--dir", str(folder), *options]


def good(report: dict[str, Any]) -> None:
    """All went as the file expects, and came to the digests of one process."""
    assert report["failures"] == []
    assert report["good"] and report["equal"]
