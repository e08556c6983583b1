"""One step of AdamW that gives the same bits on every machine, because each operation rounds exactly once.

    m ← m·β₁ + g·(1 − β₁)          v ← v·β₂ + g²·(1 − β₂)
    p ← p·(1 − η·λ) − m ÷ (√v·(1/√b₂) + ε) · (η/b₁)

IEEE 754 defines the results of fp32 multiplication, addition and division on every machine. It does not define the
rounding of torch's fused operations, such as `addcdiv`, `lerp`, or `add` with an `alpha`: some instruction sets round
them twice, others once. So this file uses no fused operation. Factors are rounded to fp32 first, and then multiplied:
some machines implement the division by a number as the multiplication by its inverse.

Square roots are computed in fp64 and rounded to fp32. torch's fp32 root uses Intel's library if it is installed; one in
150 of its results is not the nearest number, while a GPU always gives the nearest. The fp64 root of an fp32 number is
at least four fp64 units in the last place away from the nearest fp32 rounding boundary, so every library is exact
enough.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from swarm.compute.memory_table import UPDATED_AT_ONCE
from swarm.manifest import OptimizerSection
from swarm.protocol.update import Update

_BLOCK = 1 << 16
"""Elements that are processed at once on a CPU, so that they fit into the cache."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of one step, as fp32 numbers. η: learning rate; λ: weight decay; b₁, b₂: bias corrections."""

    shrink: float
    """1 − η·λ."""
    beta1: float
    rest1: float
    """1 − β₁."""
    beta2: float
    rest2: float
    root: float
    """1/√b₂."""
    eps: float
    rate: float
    """η/b₁."""

    @classmethod
    def of(cls, section: OptimizerSection, update: Update, weight_decay: float) -> Factors:
        exact = cls(
            shrink=1.0 - update.learning_rate * weight_decay,
            beta1=section.beta1,
            rest1=1.0 - section.beta1,
            beta2=section.beta2,
            rest2=1.0 - section.beta2,
            root=1.0 / math.sqrt(update.bias2),
            eps=section.eps,
            rate=update.learning_rate / update.bias1,
        )
        return cls(*torch.tensor(astuple(exact), dtype=torch.float32).tolist())


@torch.no_grad()
def step(
    parameter: Tensor,
    mean: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    factors: Factors,
    scale: float | None = None,
) -> None:
    """Update `parameter` and its moments in place: contiguous fp32 tensors of one shape on one device.

    `mean`: the gradient. With `scale`, the gradient is `mean` · `scale`, computed in fp64, and `mean` may have another
    dtype and be on another device.
    """
    p, g, m, v = (tensor.view(-1) for tensor in (parameter, mean, exp_avg, exp_avg_sq))
    block = min(len(p), _BLOCK if p.device.type == "cpu" else UPDATED_AT_ONCE)
    if not block:
        return
    gradient, held = (torch.empty(block, device=p.device) for _ in range(2))
    exact = torch.empty(block, dtype=torch.float64, device=p.device)
    for first in range(0, len(p), block):
        part = slice(first, min(first + block, len(p)))
        size = part.stop - part.start
        given = g[part]
        if scale is not None:  # convert only the elements of this block
            given = gradient[:size].copy_(exact[:size].copy_(given).mul_(scale))
        _step(p[part], given, m[part], v[part], factors, held[:size], exact[:size])


def _step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, factors: Factors, held: Tensor, exact: Tensor) -> None:
    """`held` (fp32) and `exact` (fp64) are scratch memory: allocating it for each operation would take as much time."""
    follow_gradient(m, v, g, factors, held)
    root = held.copy_(exact.copy_(v).sqrt_()).mul_(factors.root).add_(factors.eps)
    p.mul_(factors.shrink).sub_(torch.div(m, root, out=root).mul_(factors.rate))


def follow_gradient(m: Tensor, v: Tensor, g: Tensor, factors: Factors, held: Tensor) -> None:
    """Let the moments follow a gradient, in place. `held`: scratch memory. All tensors are fp32 and of one shape."""
    m.mul_(factors.beta1).add_(torch.mul(g, factors.rest1, out=held))
    v.mul_(factors.beta2).add_(torch.mul(g, g, out=held).mul_(factors.rest2))
