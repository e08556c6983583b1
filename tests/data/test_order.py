"""The permutation: a bijection, seeded, and the same for ever."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.data import Permutation, StepOrder


@given(st.integers(1, 700), st.integers(0, 2**63 - 1), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_it_is_a_bijection(n: int, seed: int, epoch: int):
    order = Permutation(n, seed, epoch)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_it_never_changes():
    """Golden values: a change here silently reorders the data of every run."""
    assert [Permutation(10, 1337, 0)[i] for i in range(10)] == GOLDEN_10
    assert [Permutation(10**12, 7, 3)[i] for i in range(3)] == GOLDEN_BIG


def test_epochs_and_seeds_differ():
    orders = {tuple(Permutation(50, seed, epoch)[i] for i in range(50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_it_mixes():
    """Neighbours do not stay neighbours, and places do not keep their half."""
    n = 4096
    order = Permutation(n, 1, 0)
    values = [order[i] for i in range(n)]
    close = sum(abs(a - b) <= 1 for a, b in itertools.pairwise(values))
    assert close < 12
    stayed = sum((v < n // 2) == (i < n // 2) for i, v in enumerate(values))
    assert abs(stayed - n / 2) < 5 * (n / 4) ** 0.5


GOLDEN_10 = [9, 1, 8, 3, 0, 4, 6, 2, 7, 5]
GOLDEN_BIG = [555761165336, 691520478405, 815940579210]


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_an_index_undoes_the_order(n: int, seed: int, epoch: int):
    order = Permutation(n, seed, epoch)
    assert [order.index(order[i]) for i in range(n)] == list(range(n))


@given(st.integers(1, 60), st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_steps_come_once_an_epoch_and_know_their_visits(blocks: int, seed: int):
    order = StepOrder(blocks, seed)
    steps = range(6 * blocks)
    for epoch in range(6):
        assert sorted(order.block(step) for step in steps[epoch * blocks : (epoch + 1) * blocks]) == list(range(blocks))
    for step in steps:
        before, after = order.previous(step), order.next(step)
        assert (before is None) == (step < blocks)
        assert before is None or (order.block(before) == order.block(step) and order.next(before) == step)
        assert order.block(after) == order.block(step) and order.previous(after) == step
        assert after // blocks == step // blocks + 1


def test_the_order_of_steps_never_changes():
    order = StepOrder(7, 1337)
    assert [order.block(step) for step in range(21)] == GOLDEN_STEPS


GOLDEN_STEPS = [0, 1, 2, 3, 4, 5, 6, 5, 6, 2, 1, 3, 4, 0, 4, 1, 5, 2, 0, 6, 3]
