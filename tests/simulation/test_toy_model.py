"""The toy model: arithmetic that tells which microbatch is missing, doubled or computed from wrong inputs."""

import pytest

from swarm.simulation.toy.toy_model import (
    bucket_share,
    explain_sum,
    ideal_run,
    loss_gradient,
    stepped_state,
    tokens_payload,
    weight_gradient,
)


def ideal(skipped: frozenset[int] = frozenset()):
    return ideal_run(2, 4, 3, 256, 1.0, skipped)


def gradient(microbatch: int) -> int:
    return weight_gradient(0, 7, tokens_payload(0, 0, microbatch), loss_gradient(3), microbatch, 4)


@pytest.mark.parametrize(
    ("microbatches", "story"),
    [
        ((0, 1, 2, 3), "every microbatch once, but computed from wrong inputs"),
        ((0, 1, 3), "m2 ×0"),
        ((0, 1, 2, 2, 3), "m2 ×2"),
        ((1, 1, 2), "m0 ×0, m1 ×2, m3 ×0"),
    ],
)
def test_a_sum_tells_what_it_holds(microbatches: tuple[int, ...], story: str) -> None:
    assert explain_sum(sum(map(gradient, microbatches)), 4) == story


def test_shares_are_linear_and_differ_by_bucket() -> None:
    a, b = gradient(0), gradient(1)
    assert bucket_share(a + b, 1) == bucket_share(a, 1) + bucket_share(b, 1)
    assert len({bucket_share(a, bucket) for bucket in range(4)}) == 4


def test_one_wrong_token_changes_every_state_after_it() -> None:
    run = ideal()
    assert len(set(run.states)) == 4
    assert stepped_state(0, run.states[0][0], run.steps[0].sums[0], run.steps[0].scale) == run.states[1][0]
    wrong = (run.steps[0].sums[0][0] + 1, *run.steps[0].sums[0][1:])
    assert stepped_state(0, run.states[0][0], wrong, run.steps[0].scale) != run.states[1][0]


def test_a_skipped_step_changes_nothing_but_the_version() -> None:
    run = ideal(frozenset({1}))
    assert run.states[:2] == ideal().states[:2]
    assert run.states[1] == run.states[2] != run.states[3]
    assert run.states[3] != ideal().states[3]


def test_what_two_stages_share_counts_each_microbatch_in_both() -> None:
    apart, together = ideal(), ideal_run(2, 4, 3, 256, 1.0, frozenset(), ends_share=True)
    first, last = together.steps[0].sums
    assert first[:2] == last[:2]
    assert first[0] == apart.steps[0].sums[0][0] + apart.steps[0].sums[1][0]
    assert explain_sum(first[0], 4, 2) == "every microbatch 2 times, but computed from wrong inputs"
    assert explain_sum(apart.steps[0].sums[0][0], 4, 2) == "m0 ×1, m1 ×1, m2 ×1, m3 ×1"
