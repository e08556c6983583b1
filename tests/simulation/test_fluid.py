"""The flow of a swarm under the real placement rules: small traces, and what they must show."""

import dataclasses

import pytest

from benchmarks.fluid import Course, best_rate, flow
from benchmarks.preemptions import Change, Preemptions, preemptions


def test_the_best_arrangement_of_equal_and_of_unequal_peers() -> None:
    assert best_rate([1.0] * 9, (1.0, 1.0)) == 4.0
    assert best_rate([2.0] * 6, (1.0, 2.0)) == 4.0
    assert best_rate([1.0], (1.0, 1.0)) == 0.0
    assert best_rate([1.0, 3.0], (1.0, 1.0)) == 2.0


def test_a_calm_swarm_does_what_is_possible_and_nobody_moves() -> None:
    outcome = flow(Course(4, Preemptions(8, 3600.0, ())))
    assert outcome.possible == pytest.approx(3600.0)
    assert outcome.share > 0.98, "but for the step that is open at the end"
    assert outcome.moves == 0 and outcome.rollbacks == 0


def test_who_dies_takes_its_share_of_the_step_along_and_who_moves_fills_the_gap() -> None:
    """Six peers in each of two stages; three of one stage die: two moves make it 4 and 5."""
    gone = Change(1000.0, go=(0, 2, 4))
    outcome = flow(Course(2, Preemptions(12, 4000.0, (gone,))))
    still = flow(Course(2, Preemptions(12, 4000.0, (gone,)), period_s=None))
    assert outcome.moves == 1 and still.moves == 0
    assert outcome.possible == pytest.approx(1000 * 3 + 3000 * 2)
    assert 0.93 < outcome.share < 1
    assert still.share < 0.85


def test_the_last_copy_of_a_stage_takes_along_what_is_not_saved() -> None:
    outcome = flow(Course(2, Preemptions(4, 4000.0, (Change(2000.0, go=(0, 2)),)), checkpoint_every=1000))
    assert outcome.rollbacks == 1
    assert outcome.done == pytest.approx(64 * int((2000 - 20) / 128), abs=3 * 64), "only what came after that counts"


def test_rebalancing_on_preemption_traces() -> None:
    """A small version of `python -m benchmarks.rebalancing`."""
    shares, moves = {}, {}
    for policy, (period_s, claims) in {"random": (None, False), "300 s": (300.0, True), "steps": (0.0, True)}.items():
        outcomes = [
            flow(Course(4, preemptions(32, 6 * 3600.0, seed), period_s=period_s, claims=claims, state_bytes=5e8))
            for seed in range(3)
        ]
        shares[policy] = sum(o.share for o in outcomes) / len(outcomes)
        moves[policy] = sum(o.moves_per_hour for o in outcomes) / len(outcomes)
    assert shares["random"] < 0.85
    assert shares["300 s"] > 0.95
    assert shares["steps"] > shares["300 s"]
    assert 0 < moves["300 s"] <= moves["steps"] < 10, "no thrash: fewer moves than departures (18 an hour)"


def test_the_same_course_flows_the_same_way() -> None:
    course = Course(4, preemptions(24, 7200.0, 1), spread=10.0)
    assert flow(course) == flow(course)
    assert flow(dataclasses.replace(course, seed=1)) != flow(course), "another draw of speeds"
