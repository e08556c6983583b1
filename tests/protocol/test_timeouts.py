"""Deadlines follow what was measured, within fractions of the step budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.timeouts import (
    Observed,
    part_deadline,
    reduce_deadline,
    silence_deadline,
    stall_deadline,
    want_deadline,
)

BUDGET_S, BEAT_S = 60.0, 1.0
SECONDS = st.floats(0.001, 1000.0)


def observed(*seconds: float) -> Observed:
    found = Observed()
    for each in seconds:
        found.add(each)
    return found


@given(st.lists(SECONDS), st.integers(0, 10))
def test_each_is_held_between_fractions_of_the_budget(seconds: list[float], times: int) -> None:
    those = observed(*seconds)
    assert BUDGET_S / 15 <= silence_deadline(those, BUDGET_S, BEAT_S) <= BUDGET_S / 4
    assert BUDGET_S / 12 <= stall_deadline(None, those, BUDGET_S, BEAT_S, times) <= 4 * BUDGET_S
    for of in (want_deadline, part_deadline):
        assert BUDGET_S / 120 <= of(those, BUDGET_S, times) <= BUDGET_S / 2


@given(SECONDS, st.integers(0, 3), st.booleans())
def test_who_is_known_has_its_own_time(own_s: float, fences: int, probed: bool) -> None:
    allowed = stall_deadline(own_s, observed(0.1), BUDGET_S, BEAT_S, fences, probed)
    assert allowed >= min((2 if probed else 4) * own_s, 4 * BUDGET_S)
    assert allowed == stall_deadline(own_s, observed(500.0), BUDGET_S, BEAT_S, fences, probed), "whatever others take"


def test_who_failed_before_and_is_tried_has_half_the_time() -> None:
    assert stall_deadline(10.0, Observed(), BUDGET_S, BEAT_S, 0) == pytest.approx(42.0)
    assert stall_deadline(10.0, Observed(), BUDGET_S, BEAT_S, 0, probed=True) == pytest.approx(22.0)


def test_whoever_is_tried_is_not_waited_for_by_the_budget_of_a_step() -> None:
    quick = [stall_deadline(0.1, Observed(), BUDGET_S, BEAT_S, 0, probed) for probed in (False, True)]
    assert quick == [BUDGET_S / 12, 3 * BEAT_S]
    unknown = [stall_deadline(None, observed(0.1), BUDGET_S, BEAT_S, 0, probed) for probed in (False, True)]
    assert unknown[0] == unknown[1], "it may have restarted on a slow machine"


def test_a_reduction_may_stand_still_for_several_times_as_long_as_most_have_taken() -> None:
    def allowed(*seconds: float, budget_s: float = BUDGET_S) -> float:
        return reduce_deadline(observed(*seconds), budget_s, BEAT_S)

    assert allowed() == BUDGET_S / 3, "nobody knows its line"
    assert allowed(0.2, 0.2, 19.0) == BUDGET_S / 12, "one that took long says little"
    assert allowed(0.2, 1.5, 1.5) == 12.0
    assert allowed(30.0) == BUDGET_S / 3
    assert allowed(0.2, budget_s=12.0) == 5 * BEAT_S, "progress is reported once per heartbeat"


def test_a_frame_is_asked_for_by_what_most_take() -> None:
    mostly_soon = observed(*[0.5] * 8, *[3.0] * 2)
    assert want_deadline(mostly_soon, BUDGET_S, 0) == pytest.approx(1.0)
    assert want_deadline(Observed(), BUDGET_S, 0) == pytest.approx(3.0)
