"""The retraction finds the polar factor, always the same bits of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarm.models.retraction import RankError, retract


def moved(rows: int, columns: int, step: float, seed: int = 0) -> Tensor:
    """An orthonormal matrix after a step of AdamW at its worst: every entry moves by `step`."""
    generator = torch.Generator().manual_seed(seed)
    start = retract(torch.randn((rows, columns), generator=generator))
    return start + step * torch.randn((rows, columns), generator=generator).sign()


def error(x: Tensor) -> float:
    tall = (x if x.shape[0] >= x.shape[1] else x.mT).double()
    return (tall.mT @ tall - torch.eye(tall.shape[1])).abs().max().item()


@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 60),
    step=st.sampled_from([0.0, 1e-4, 0.01, 0.3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_any_step_is_taken_back_to_orthonormal(rows: int, columns: int, step: float, seed: int) -> None:
    x = moved(rows, columns, step, seed)
    found = retract(x)
    assert found.shape == x.shape and found.dtype == torch.float32 and found.is_contiguous()
    assert error(found) < 2e-6
    assert torch.equal(retract(found), found), "what is orthonormal stays as it is"


@pytest.mark.parametrize("shape", [(64, 8), (8, 64), (16, 16)])
def test_it_is_the_nearest_orthonormal_matrix(shape: tuple[int, int]) -> None:
    x = moved(*shape, 0.02)
    left, _, right = torch.linalg.svd(x.double(), full_matrices=False)
    torch.testing.assert_close(retract(x).double(), left @ right, atol=1e-6, rtol=0)


def test_no_sum_rounds_so_no_order_matters() -> None:
    """Rows in another order make another order of every sum over rows: fp32 products differ, these do not."""
    x = moved(700, 24, 0.02)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(1))
    assert torch.equal(retract(x)[order], retract(x[order]))
    shuffled = x[order]
    assert not torch.equal(x.mT @ x, shuffled.mT @ shuffled), "or nothing was put to the test"


def test_the_grid_is_part_of_the_definition() -> None:
    found = retract(moved(40, 5, 0.01)).double() * 2**24
    assert torch.equal(found, found.round())


@pytest.mark.parametrize(
    "x", [torch.zeros(4, 2), torch.full((4, 2), 0.5), torch.tensor([[1.0, 0.0], [0.0, float("inf")]])]
)
def test_columns_that_depend_on_each_other_are_refused(x: Tensor) -> None:
    with pytest.raises(RankError, match=r"a projector of .* is not finite or does not have full rank"):
        retract(x)
