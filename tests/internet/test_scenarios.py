"""Scenarios on an emulated internet, by `swarm-peer chaos`: each must show what its file expects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scenarios import IN_CI
from peers.chaos.namespace import why_not

SCENARIOS = Path(__file__).parent / "scenarios"
pytestmark = [
    pytest.mark.swarm,
    pytest.mark.xdist_group("internet"),  # hosts of their own: beside other swarms, not after them
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.mark.parametrize("name", IN_CI)
def test_as_expected(name: str, tmp_path: Path) -> None:
    words = ["chaos", str(SCENARIOS / f"{name}.toml"), "--json", "--dir", str(tmp_path)]
    played = subprocess.run([sys.executable, "-P", "-m", "peers", *words], capture_output=True, text=True, timeout=280)
    assert played.returncode in (0, 3), played.stdout[-2000:] + played.stderr[-4000:]
    report = json.loads(played.stdout)
    assert report["failures"] == []
    assert report["good"] and report["equal"]
    assert report["finished"] or name == "soak-short"
    assert report["episodes"] or name == "liars", "no fault struck"  # its peers are faulty from the start
