"""Scenarios on an emulated internet, by `swarm-peer chaos`: each must show what its file expects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios import IN_CI
from peers.chaos.namespace import why_not

SCENARIOS = Path(__file__).parent / "scenarios"
FROM_THE_START = ("far-away", "liars", "nat-nobody")
"""Nothing befalls these later: peers lie, or have such lines, all the time."""
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.xdist_group("internet"),  # hosts of their own: beside other swarms, not after them
]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("name", IN_CI)
def test_as_expected(name: str, tmp_path: Path) -> None:
    report = played(name, tmp_path)
    assert report["finished"] or name == "soak-short"
    assert report["episodes"] or name in FROM_THE_START, "no fault struck"


def test_without_root_hosts_are_ports_of_a_relay(tmp_path: Path) -> None:
    report = played("kills", tmp_path, "--network=relay")
    assert report["finished"] and report["episodes"]


def played(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """The report, of a play that went as it should and came to the digests of one process."""
    words = ["chaos", str(SCENARIOS / f"{name}.toml"), "--json", "--dir", str(folder), *options]
    command = [sys.executable, "-P", "-m", "peers", *words]
    played = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert played.returncode in (0, 3), played.stdout[-2000:] + played.stderr[-4000:]
    report: dict[str, Any] = json.loads(played.stdout)
    assert report["failures"] == []
    assert report["good"] and report["equal"]
    return report
