"""The retraction of a trained projector: makes it orthonormal after an optimizer step, with the same bits everywhere.

The nearest matrix with orthonormal columns is the polar factor. The Newton-Schulz iteration X ← X(3I − XᵀX)/2 computes
it with matrix products. In general, these round differently with another BLAS, thread count or device; here, they are
exact. All entries are multiples of 2^-24, so products are multiples of 2^-48. In fp64, their sums are exact in any
order below 2^5, which holds because no column is longer than √2.5 at the start. Only the conversion back to multiples
of 2^-24 rounds, elementwise, as IEEE 754 defines.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GRID = 2.0**24
_CLOSE = 2.0**-20
"""Largest accepted |XᵀX − I|. The error from rounding to the grid is at most 2^-23 for up to a thousand columns."""
_LONGEST = 2.5
"""Newton-Schulz converges for squared singular values below 3."""
_ROUNDS = 64


class RankError(ArithmeticError):
    """The columns of a projector have become linearly dependent: there is no unique nearest orthonormal matrix."""


@torch.no_grad()
def retract(weight: Tensor) -> Tensor:
    """The nearest matrix with orthonormal columns (rows, if it is wide), as a new tensor; fp32 in and out.

    The result has |XᵀX − I| < 2^-20. A matrix that is orthonormal already is only rounded to multiples of 2^-24. Raises
    RankError.
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
        f"after a step, a projector of shape {list(weight.shape)} is not finite or does not have full rank: "
        "lower optimizer.learning_rate"
    )


def _shortened(x: Tensor) -> Tensor:
    """x, halved until Newton-Schulz converges. The largest column sum of |XᵀX| bounds the squared singular values."""
    while bool((x.mT @ x).abs().sum(0).max() > _LONGEST):
        x = _on_grid(x / 2)
    return x


def _on_grid(x: Tensor) -> Tensor:
    return (x * _GRID).round() / _GRID
