"""One step of Muon (Jordan et al. 2024) for a matrix, which gives the same bits on every machine.

    m ← m·μ + g·(1 − μ)                     v ← v·β₂ + g²·(1 − β₂)
    u = m·μ + g·(1 − μ)
    X = u/|u|; five times: G = X·Xᵀ, X ← a·X + (b·G + c·G²)·X
    p ← p·(1 − η·λ) − X·(0.2·η·√max(rows, columns))

The iteration brings the large singular values of u to between 0.7 and 1.2 and keeps the singular vectors. The factor
0.2·√max(rows, columns) gives the update the size of AdamW's (Liu et al. 2025, arXiv 2502.16982), so both use the same
learning rate. No update depends on v; the grids of `dither` follow it (block_grid.py).

All products are exact, so they do not depend on the order of their sums. Entries are multiples of 2^-18, thus products
are multiples of 2^-36. No singular value of X exceeds 1.3, so by Cauchy-Schwarz no sum exceeds 4, not even a partial
one. fp64 represents all these sums. Most graphics cards are slow in fp64, so `product` has another way for them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarm.compute.adamw import Factors, follow_gradient
from swarm.compute.norm import sum_of_squares
from swarm.manifest import OptimizerSection
from swarm.protocol.update import Update

_ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
"""The coefficients of Jordan et al. They raise small singular values fastest."""
_SIZE = 0.2
"""Root mean square of an update of AdamW, relative to the learning rate."""
_FINE, _COARSE = 2.0**18, 2.0**11
_SUMMED = 1024
"""Terms of a sum in fp32 of products of parts."""


def factors_of(section: OptimizerSection, update: Update) -> Factors:
    """The factors of one step for `step`."""
    return Factors.of(section.model_copy(update={"beta1": section.momentum}), update, section.weight_decay)


@torch.no_grad()
def step(
    parameter: Tensor,
    mean: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    factors: Factors,
    learning_rate: float,
    scale: float = 1.0,
) -> None:
    """Update `parameter`, (rows, columns, …), and its moments in place. They are contiguous fp32 tensors of one shape.

    `mean`: as many numbers, of any dtype on any device. The gradient is `mean` · `scale`, computed in fp64.
    """
    if not parameter.numel():
        return
    gradient = mean.to(parameter.device, torch.float64, copy=True).mul_(scale).float().view(parameter.shape)
    held = torch.empty_like(gradient)
    follow_gradient(exp_avg, exp_avg_sq, gradient, factors, held)
    ahead = gradient.mul_(factors.rest1).add_(torch.mul(exp_avg, factors.beta1, out=held))
    del held  # its memory is needed below
    matrix = ahead.view(len(parameter), -1)
    rate = torch.tensor(_SIZE * learning_rate * math.sqrt(max(matrix.shape)), dtype=torch.float32).item()
    parameter.mul_(factors.shrink).sub_(orthogonal(matrix).mul_(rate).view(parameter.shape))


@torch.no_grad()
def orthogonal(matrix: Tensor) -> Tensor:
    """A new matrix with the singular vectors of `matrix`, (rows, columns) fp32, and large singular values near 1.

    Zeros stay zeros.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.mT.contiguous()).mT.contiguous()
    length = math.sqrt(sum_of_squares(matrix.reshape(-1)))
    if not length:
        return torch.zeros_like(matrix)
    x = _rounded(matrix.double().mul_(1.0 / length))
    for _ in range(_ROUNDS):
        gram = _rounded(product(x, x.mT))
        polynomial = _rounded(product(gram, gram).mul_(_C).add_(gram.mul_(_B)))
        del gram  # memory for the next product
        x = _rounded(product(polynomial, x).add_(x.mul_(_A)))
        del polynomial
    return x.float()


def product(left: Tensor, right: Tensor, split: bool | None = None) -> Tensor:
    """left · right, exactly: fp64 in and out. `split`: in fp32; None: if the device is not a CPU.

    For that, each number is a multiple of 2^-11 plus a rest of at most 2^-12. Products of such parts are exact in fp32
    too: sums of 1,024 of them are less than 2^24 times as large as their unit. These sums are added in fp64.
    """
    if not (left.device.type != "cpu" if split is None else split):
        return left @ right
    total = torch.zeros(len(left), right.shape[1], dtype=torch.float64, device=left.device)
    for first in range(0, left.shape[1], _SUMMED):
        rows = _parts(right[first : first + _SUMMED])
        for one in _parts(left[:, first : first + _SUMMED]):
            for other in rows:
                total += one @ other
    return total


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    coarse = (x * _COARSE).round_().div_(_COARSE).float()
    return coarse, (x - coarse).float()


def _rounded(x: Tensor) -> Tensor:
    """`x` rounded to multiples of 2^-18, in place."""
    return x.mul_(_FINE).round_().div_(_FINE)


def flop(shape: torch.Size) -> int:
    """Floating-point operations of the products for a parameter of this shape."""
    few, many = sorted((shape[0], math.prod(shape[1:])))
    return _ROUNDS * (4 * few * few * many + 2 * few**3)


def scratch_bytes(shape: torch.Size, on_card: bool) -> int:
    """Scratch memory of `step` for a parameter of this shape. `on_card`: products are split."""
    rows, columns = shape[0], math.prod(shape[1:])
    few, many = sorted((rows, columns))
    whole = 4 + 8 + 8 + (4 if rows > columns else 0)  # the gradient, X before and after a round, and X upright
    split = 0
    if on_card:  # parts of X and of the small matrix, while they are made and afterwards, and a product of them
        wide, small = 8 * min(few, _SUMMED) * many, 8 * min(few, _SUMMED) * few
        split = max(2 * wide, wide + 2 * small, wide + small + 4 * few * many)
    return whole * few * many + 8 * few * few + split
