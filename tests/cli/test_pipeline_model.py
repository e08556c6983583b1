"""The model of a pipeline gives what is known of both schedules."""

import pytest

from peers.run.pipeline_model import BACKWARD, FORWARD, efficiency, step_units

MICROBATCHES = 32


@pytest.mark.parametrize("stages", [1, 2, 4, 8, 16])
def test_bubbles_are_those_of_the_formulas(stages: int) -> None:
    """Fill and drain cost a whole microbatch for each further stage, or a forward, with zero bubble."""
    ideal = MICROBATCHES * (FORWARD + BACKWARD)
    whole = step_units(stages, MICROBATCHES, zero_bubble=False)
    split = step_units(stages, MICROBATCHES, zero_bubble=True)
    assert (whole - ideal, split - ideal) == ((stages - 1) * (FORWARD + BACKWARD), (stages - 1) * FORWARD)


def test_one_microbatch_goes_through_and_back() -> None:
    assert step_units(3, 1, zero_bubble=False) == 9.0
    assert step_units(3, 1, zero_bubble=True) == 7.0, "the first stage's weights come after six units"
    assert step_units(3, 1, zero_bubble=False, hop=0.5) == 11.0


def test_slow_links_cost_both_schedules() -> None:
    for zero_bubble in (False, True):
        near, far = (efficiency(8, MICROBATCHES, zero_bubble=zero_bubble, hop=hop) for hop in (0.0, 0.5))
        assert far < near
