"""Goodput under departures in the simulated fleet, in virtual time: the same on any machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.fleet_goodput import goodput, plan_of, run

SECONDS = 1200.0
"""Virtual."""

pytestmark = pytest.mark.xdist_group("fleet_goodput")  # the calm run is shared


@pytest.fixture(scope="module")
def calm() -> dict[str, Any]:
    """Where nobody leaves."""
    return run(plan_of("0", seed=1), SECONDS)


@pytest.mark.parametrize(("departures", "least"), [("0.16", 0.90), ("trace", 0.80)])
def test_a_swarm_makes_steps_of_what_capacity_survives(calm: dict[str, Any], departures: str, least: float) -> None:
    found = run(plan_of(departures, seed=1), SECONDS)
    assert found["left"] > 0 and found["came"] > 0, "it happened"
    assert goodput(found, calm) >= least
