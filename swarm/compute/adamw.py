"""One step of AdamW, of operations that round once each: every machine comes to the same bits.

    m ← m·β₁ + g·(1 − β₁)          v ← v·β₂ + g²·(1 − β₂)
    p ← p·(1 − η·λ) − m ÷ (√v·(1/√b₂) + ε) · (η/b₁)

Multiplications, additions and divisions of fp32 are fixed by IEEE 754, whatever the vector unit. What is not is how a
fused one rounds, such as torch's `addcdiv`, `lerp`, or `add` with an `alpha`: one instruction set does it in two
steps, the next in one. So each stands alone here. Factors are rounded to fp32 first, and multiply: to divide by a
number is on some machines to multiply by its inverse.

Roots are taken in fp64 and rounded to fp32. In fp32 torch's come from Intel's library where that is there, and one in
150 is not the nearest number; on a graphics card all are. The fp64 root of an fp32 number is at least four units of its
last place away from where fp32 rounds the other way, so no library is too coarse for that.
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
"""Elements at once on a CPU: what is worked on stays in a cache."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Of one step; fp32 numbers."""

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
    """In place, of contiguous fp32 tensors of one shape on one device. `mean`: the gradient.

    With `scale` it may be of another type and elsewhere, and is that gradient once it is multiplied, in fp64.
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
        if scale is not None:  # no more of it at once than is worked on
            given = gradient[:size].copy_(exact[:size].copy_(given).mul_(scale))
        _step(p[part], given, m[part], v[part], factors, held[:size], exact[:size])


def _step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, factors: Factors, held: Tensor, exact: Tensor) -> None:
    """`held`, fp32, and `exact`, fp64, are overwritten: new memory for each operation would cost as much as that."""
    m.mul_(factors.beta1).add_(torch.mul(g, factors.rest1, out=held))
    v.mul_(factors.beta2).add_(torch.mul(g, g, out=held).mul_(factors.rest2))
    root = held.copy_(exact.copy_(v).sqrt_()).mul_(factors.root).add_(factors.eps)
    p.mul_(factors.shrink).sub_(torch.div(m, root, out=root).mul_(factors.rate))
