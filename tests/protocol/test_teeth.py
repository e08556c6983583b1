"""Protocols that are broken on purpose: the simulator catches each, at a known seed and within 500."""

import pytest

from swarm.simulation.runs.runner import run_seed
from tests.mutants import MUTANTS, Mutant

SEEDS = 500
KNOWN = {
    "no fencing": 9,
    "replay without dedup": 0,
    "decide without all stages": 109,
    "late amendment accepted": 76,
    "late open accepted": 509,
    "cursor shifted on resume": 8,
    "reduce attempt without id": 61,
    "release without hand-shake": 519,
    "poll after crash": 326,
    "set digests unchecked": 0,
    "done taken for completeness": 152,
    "counted when sent": 0,
    "told before durable": 4,
    "works while paused": 2,
    "no retention": 1,
    "base unchecked": 0,
    "copies mixed": 1027,
    "own copy kept": 15,
    "choice unrecorded": 0,
    "chosen while open": 0,
    "partner's table unchecked": 147,
    "other stage left out": 0,
    "rounds at once": 2,
    "residuals ungranted": 20,
    "residuals settled early": 36,
    "residuals of another term": 43,
    "sums unchecked": 2,
    "step left out": 8,
    "in the roster too early": 2,
    "copied too late": 2,
    "one stage believed": 0,
    "one word believed": 36,
    "late alone": 2,
    "devices come back": 810381,
    "audits left out": 2,
    "checkpoints kept back": 1,
    "state kept back": 0,
    "loses again": 11,
    "reloads for ever": 0,
    "let go at once": 72,
    "last copy let go": 8,
    "taken from a leaver": 72,
    "last replica moved": 0,
    "moves at once": 25,
    "moved before drained": 0,
    "kinds alike": 2,
    "seat given up at once": 2,
    "two votes": 0,
    "one disk is enough": 3,
    "shorter log wins": 40,
    "vote forgotten": 2,
    "older leader obeyed": 92,
    "own copy is enough": 0,
    "rate of the decision": 1,
    "in force before it is written": 0,
    "every request is new": 1,
    "expulsion forgotten": 95,
    "told before it is written": 0,
}
"""A seed that catches each mutant. After a change of the protocol another may be needed: SEARCH finds it."""
SEARCH = (
    "find another seed with `pytest -n 0 -rP --long tests/protocol/test_teeth.py -k first_seeds` and put it in KNOWN"
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_protocol_is_caught(mutant: Mutant) -> None:
    with mutant.planted():
        caught = run_seed(mutant.scenario, KNOWN[mutant.name])
    assert not caught.ok, f"seed {caught.seed} does not notice any longer that {mutant.rule!r} is broken: {SEARCH}"
    assert run_seed(mutant.scenario, caught.seed).ok, "the same seed is fine without the planted bug"


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_first_seeds_catch_a_broken_protocol(mutant: Mutant) -> None:
    """Scan the first seeds, whatever is known. Print the first that catches the mutant."""
    seeds = range(mutant.first, mutant.first + SEEDS)
    with mutant.planted():
        caught = next((o for seed in seeds if not (o := run_seed(mutant.scenario, seed)).ok), None)
    assert caught is not None, f"{mutant.name}: {SEEDS} seeds did not notice that {mutant.rule!r} is broken"
    print(f'"{mutant.name}": {caught.seed},  # {caught.invariant}: {caught.detail}')
    assert run_seed(mutant.scenario, caught.seed).ok, "the same seed is fine without the planted bug"


def test_mutants_are_planted_for_a_while_only() -> None:
    before = [run_seed("mixed", seed).events for seed in range(5)]
    for mutant in MUTANTS:
        with mutant.planted():
            pass  # the tests above run each
    assert [run_seed("mixed", seed).events for seed in range(5)] == before
