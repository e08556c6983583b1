"""Goodput under departures in the simulated fleet, in virtual time: the same on any machine."""

from __future__ import annotations

import pytest

from benchmarks.fleet_goodput import _plan, _run

SECONDS = 1200.0
"""Virtual."""

pytestmark = pytest.mark.xdist_group("fleet_goodput")  # the calm run is shared


@pytest.fixture(scope="module")
def calm() -> float:
    """Tokens per second where nobody leaves."""
    return float(_run(_plan("0", seed=1), SECONDS)["tokens_per_s"])


@pytest.mark.parametrize(("departures", "least"), [("0.16", 0.90), ("trace", 0.80)])
def test_a_swarm_makes_steps_of_what_capacity_survives(calm: float, departures: str, least: float) -> None:
    found = _run(_plan(departures, seed=1), SECONDS)
    assert found["left"] > 0 and found["came"] > 0, "it happened"
    assert found["tokens_per_s"] / calm / found["capacity"] >= least
