"""A flipped bit in a replica's sums: siblings find it by comparison, and no step is decided with it."""

from dataclasses import replace

import pytest

from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.simulation.checks.flipped_sums import FlippedSums
from swarm.simulation.runs.runner import run_plan, run_seed
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.organiser import Wish

SEED = 700318
"""The organiser expels one of two replicas. Then a bit flips in the other one, which reduces alone."""


def test_no_bit_flips_where_nobody_could_notice_it() -> None:
    assert run_seed("controls", SEED).ok


def test_only_who_expels_the_other_replica_decides_with_a_flipped_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bit flips at 0.2243 s, and the other replica is expelled before it reports its sums."""
    plan = replace(plan_of("controls", 22738), wishes=(Wish(0.2133, "expel"),))
    assert run_plan(plan).ok
    monkeypatch.setattr(FlippedSums, "excuse", lambda self, decision, right: False)
    assert "wrong bytes" in run_plan(plan).detail, "no such decision: another time of the expulsion is needed"


@pytest.mark.parametrize(("scenario", "seed"), [("bit-flip", 5), ("controls", 2728)])
def test_a_flipped_bit_that_is_not_compared_is_found(scenario: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(scenario, seed).ok
    monkeypatch.setattr(Preparation, "_believed", lambda self, stage, without: next(iter(self.reports[stage].values())))
    assert "wrong bytes" in run_seed(scenario, seed).detail
