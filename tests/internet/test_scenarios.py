"""Scenarios on an emulated internet, by `swarm-peer chaos`: each must show what its file expects.

One command plays all that were selected, so that processes are warm; every scenario is a test of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peers.chaos.namespace import why_not

SCENARIOS = Path(__file__).parent / "scenarios"
IN_CI = (
    "bootstrap-dies",
    "clock-skew",
    "everything-dies",
    "full-disk",
    "hang-and-partition",
    "kills",
    "last-replica",
    "partition",
    "slow-peer",
    "soak-short",
)
"""`python -m benchmarks.faults` plays the others too."""

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.xdist_group("swarm"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

Reports = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """By name, of those scenarios that are tested in this session."""
    mine = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in mine if hasattr(item, "callspec")]
    folder = tmp_path_factory.mktemp("chaos")
    words = ["chaos", *(str(SCENARIOS / f"{name}.toml") for name in names), "--json", "--dir", str(folder)]
    played = subprocess.run([sys.executable, "-P", "-m", "peers", *words], capture_output=True, text=True, timeout=580)
    assert played.returncode in (0, 3), played.stdout[-2000:] + played.stderr[-4000:]
    return {report["scenario"]: report for report in map(json.loads, played.stdout.splitlines())}


@pytest.mark.parametrize("name", IN_CI)
def test_as_expected(name: str, reports: Reports) -> None:
    report = reports[name]
    assert report["failures"] == []
    assert report["good"] and report["equal"]
    assert report["finished"] or name == "soak-short"
    assert report["episodes"], "no fault struck"
