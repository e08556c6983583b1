"""Protocols that are broken on purpose: the simulator catches each within 500 seeds."""

from collections.abc import Callable

import pytest

from swarm.simulation.mutants import MUTANTS, Mutant
from swarm.simulation.runner import run_seed

SEEDS = 500


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_protocol_is_caught(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    with mutant.planted():
        caught = next(
            (o for seed in range(mutant.first, mutant.first + SEEDS) if not (o := run_seed(mutant.scenario, seed)).ok),
            None,
        )
    assert caught is not None, f"{mutant.name}: {SEEDS} seeds did not notice that {mutant.rule!r} is broken"
    print(f"{mutant.name}: seed {caught.seed}, {caught.invariant}: {caught.detail}")
    record_property("seed", caught.seed)
    record_property("invariant", caught.invariant)
    assert run_seed(mutant.scenario, caught.seed).ok, "the same seed is fine without the planted bug"


def test_mutants_are_planted_for_a_while_only() -> None:
    before = [run_seed("mixed", seed).events for seed in range(5)]
    for mutant in MUTANTS:
        with mutant.planted():
            run_seed(mutant.scenario, 0)
    assert [run_seed("mixed", seed).events for seed in range(5)] == before
