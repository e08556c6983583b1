"""A flipped bit in a replica's sums: siblings find it by comparison, and no step is decided with it."""

import pytest

from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.simulation.runs.runner import run_seed

SEED = 700318
"""The organiser expels one of two replicas. Then a bit flips in the other one, which reduces alone."""


def test_no_bit_flips_where_nobody_could_notice_it() -> None:
    assert run_seed("controls", SEED).ok


@pytest.mark.parametrize(("scenario", "seed"), [("bit-flip", 5), ("controls", 2728)])
def test_a_flipped_bit_that_is_not_compared_is_found(scenario: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(scenario, seed).ok
    monkeypatch.setattr(Preparation, "_believed", lambda self, stage, without: next(iter(self.reports[stage].values())))
    assert "wrong bytes" in run_seed(scenario, seed).detail
