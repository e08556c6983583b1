"""What a stage's replicas end with: their sums added up, and how the numbers of such a vector are read.

With mode "exact" and nothing compressed a reduced vector is int64, in units of the grid. Compressed averages lie on no
grid and are fp64. With mode "fp32" all is fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from swarm.compute.grid import NOT_FINITE, SumOverflow, peak_of, too_large
from swarm.manifest import SumSection

_LOST = NOT_FINITE >> 1
"""No sum of numbers comes down to this, and none of numbers with one NOT_FINITE stays above it."""


def reduced_dtype(sums: SumSection) -> torch.dtype:
    """What a stage's reduced vector is made of."""
    if sums.mode != "exact":
        return torch.float32
    return torch.float64 if sums.compresses else torch.int64


def unit_of(dtype: torch.dtype, sums: SumSection) -> float:
    """What a 1 in a reduced vector of `dtype` stands for."""
    return 1.0 if dtype.is_floating_point else 2.0**-sums.grid_bits


def loss_of(reduced: Tensor, sums: SumSection) -> float:
    """The loss sum, at the end of the last stage's reduced vector; NaN if it is not finite."""
    loss = reduced[-1].item()
    if not reduced.is_floating_point() and loss == NOT_FINITE:
        return math.nan
    return float(loss * unit_of(reduced.dtype, sums))


def in_floats(numbers: Tensor, sums: SumSection) -> Tensor:
    """Sums in units of the grid as fp64; floats as they are."""
    if numbers.is_floating_point():
        return numbers
    floats = numbers.to(torch.float64).mul_(2.0**-sums.grid_bits)
    return floats.masked_fill_(numbers == NOT_FINITE, math.nan)


@torch.no_grad()
def combine(own: Tensor, parts: Iterable[Tensor], sums: SumSection, out: Tensor | None = None) -> Tensor:
    """own and all parts: what every replica receives. In `out`, or freshly allocated where `own` is.

    (count,) int64 in units of the grid, or fp32. What is not finite becomes NOT_FINITE, or one canonical NaN, so that
    equal sets give equal bytes in any order. Raises SumOverflow, with `out` undefined.
    """
    total = torch.empty_like(own) if out is None else out
    total.copy_(own)
    if sums.mode == "exact":
        _add_up(total, parts, sums.grid_bits)
        return total
    for part in parts:
        total += part
    if not math.isfinite(peak_of(total)):
        total[~torch.isfinite(total)] = math.nan
    return total


def _add_up(total: Tensor, parts: Iterable[Tensor], grid_bits: int) -> None:
    given = False
    for part in parts:
        given = True
        _add(total, part)
        low, high = _range(total)
        if low < _LOST:  # at once: two of NOT_FINITE still fit into 64 bits, more do not
            total[total < _LOST] = NOT_FINITE
    if not given:  # the bound of own sums is known to be low enough
        return
    if low < _LOST:
        low = int(torch.where(total == NOT_FINITE, 0, total).min())
    if (peak := max(-low, high)) >= 1 << 53:  # of the whole sum: no order of the parts decides
        raise SumOverflow(too_large("the sum over replicas", peak * 2.0**-grid_bits, grid_bits, 53, None))


def _add(total: Tensor, part: Tensor) -> None:
    if total.device.type == "cpu":  # torch multiplies whole numbers by 1 before it adds them
        np.add(total.numpy(), part.numpy(), out=total.numpy())
    else:
        total += part


def _range(values: Tensor) -> tuple[int, int]:
    if not len(values):
        return 0, 0
    if values.device.type == "cpu":
        return int(values.numpy().min()), int(values.numpy().max())  # a third of what torch takes
    low, high = torch.stack(torch.aminmax(values)).tolist()
    return low, high
