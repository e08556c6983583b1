"""How fast a peer says it is: an average, but at once if it has become slow."""

import pytest

from swarm.protocol.peer.compute_time import ComputeTime


def measured(pace: ComputeTime, forward: float, backward: float, microbatches: int = 3) -> ComputeTime:
    for _ in range(microbatches):
        pace.forward(forward)
        pace.backward(backward)
    return pace


def test_it_is_known_when_a_backward_is() -> None:
    pace = ComputeTime()
    pace.new_pass(0)
    pace.forward(1.0)
    assert pace.seconds_per_microbatch is None
    pace.backward(2.0)
    assert pace.seconds_per_microbatch is None, "a first one says little"
    assert measured(pace, 1.0, 2.0).seconds_per_microbatch == pytest.approx(3.0)


def test_the_last_stage_has_no_forwards() -> None:
    pace = ComputeTime()
    pace.new_pass(3)
    for _ in range(2):
        pace.backward(2.0)
    assert pace.seconds_per_microbatch == pytest.approx(2.0)


def test_a_little_slower_is_averaged_and_much_slower_is_believed() -> None:
    pace = ComputeTime()
    pace.new_pass(0)
    measured(pace, 1.0, 2.0).new_pass(0)
    measured(pace, 1.5, 3.0).new_pass(0)
    assert pace.seconds_per_microbatch == pytest.approx(3.75)
    measured(pace, 10.0, 20.0).new_pass(0)
    assert pace.seconds_per_microbatch == pytest.approx(30.0)
    measured(pace, 1.0, 2.0).new_pass(0)
    assert pace.seconds_per_microbatch == pytest.approx(16.5), "not so much faster"


def test_who_was_fenced_in_its_first_forward_has_measured_it() -> None:
    pace = ComputeTime()
    pace.new_pass(0)
    measured(pace, 1.0, 2.0).new_pass(0)
    pace.forward(10.0)
    pace.new_pass(0)
    assert pace.seconds_per_microbatch == pytest.approx(12.0)


def test_another_stage_is_measured_anew() -> None:
    pace = ComputeTime()
    pace.new_pass(0)
    measured(pace, 1.0, 2.0).new_pass(1)
    assert pace.seconds_per_microbatch is None
