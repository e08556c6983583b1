"""Goodput under departures in the simulated fleet, in virtual time: the same on any machine."""

from __future__ import annotations

import pytest

from benchmarks.fleet_goodput import goodput, plan_of, run

SHORT_S = 100.0
LONG_S = 1200.0
"""Virtual. In the shorter one a node leaves and another comes, as in three times as long."""


@pytest.mark.parametrize(
    ("seconds", "departures", "least"),
    [
        (SHORT_S, "trace", 0.80),
        pytest.param(LONG_S, "trace", 0.80, marks=pytest.mark.long),
        pytest.param(LONG_S, "0.16", 0.90, marks=pytest.mark.long),
    ],
)
def test_a_swarm_makes_steps_of_what_capacity_survives(seconds: float, departures: str, least: float) -> None:
    calm = run(plan_of("0", seed=1), seconds)  # where nobody leaves
    found = run(plan_of(departures, seed=1), seconds)
    assert found["left"] > 0 and found["came"] > 0, "it happened"
    assert goodput(found, calm) >= least
