"""The retraction of a learned projector: back to orthonormal after an optimizer step, to the same bits everywhere.

The nearest matrix with orthonormal columns is the polar factor. Newton-Schulz, X ← X(3I − XᵀX)/2, finds it with plain
matrix products. Those would round differently on another BLAS, thread count or device; here no product rounds. All
entries are multiples of 2^-24, so products are multiples of 2^-48, and in fp64 sums below 2^5 of those are exact in any
order: no column is longer than √2.5 when the rounds begin. Only the step back to multiples of 2^-24 rounds, element by
element, and IEEE 754 fixes that.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GRID = 2.0**24
_CLOSE = 2.0**-20
"""Largest |XᵀX − I| that is accepted. Rounding to the grid leaves 2^-23 or less up to a thousand columns."""
_LONGEST = 2.5
"""Newton-Schulz converges for squared singular values below 3."""
_ROUNDS = 64


class RankError(ArithmeticError):
    """A projector whose columns have become dependent: no nearest orthonormal matrix exists."""


@torch.no_grad()
def retract(weight: Tensor) -> Tensor:
    """The nearest matrix with orthonormal columns (rows, when wide): fp32 in, fp32 out, a new tensor.

    |XᵀX − I| ends below 2^-20 everywhere. An orthonormal matrix is returned unchanged, but rounded to multiples of
    2^-24. Raises RankError.
    """
    if weight.shape[0] < weight.shape[1]:
        return retract(weight.mT).mT.contiguous()
    if bool(weight.isfinite().all()):
        x = _shortened(_on_grid(weight.double()))
        one = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        for _ in range(_ROUNDS):
            gram = x.mT @ x
            if bool((gram - one).abs().max() <= _CLOSE):
                return x.float()
            x = _on_grid(x @ _on_grid(1.5 * one - 0.5 * gram))
    raise RankError(
        f"a projector of {list(weight.shape)} is not finite or not of full rank after a step: "
        "lower optimizer.learning_rate"
    )


def _shortened(x: Tensor) -> Tensor:
    """x, halved until Newton-Schulz converges. The largest sum in a column of |XᵀX| bounds the singular values."""
    while bool((x.mT @ x).abs().sum(0).max() > _LONGEST):
        x = _on_grid(x / 2)
    return x


def _on_grid(x: Tensor) -> Tensor:
    return (x * _GRID).round() / _GRID
