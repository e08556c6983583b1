"""The reduced vector of a stage: how the replicas' sums are added, and what its numbers mean.

With mode "exact" and without compression, a reduced vector is int64, in units of the grid. Compressed averages are not
on a grid and are fp64. With mode "fp32" everything is fp32.
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
"""Threshold for sums: a sum of finite numbers is always above it, a sum that contains NOT_FINITE always below."""


def reduced_dtype(sums: SumSection) -> torch.dtype:
    """The dtype of a stage's reduced vector."""
    if sums.mode != "exact":
        return torch.float32
    return torch.float64 if sums.compresses else torch.int64


def unit_of(dtype: torch.dtype, sums: SumSection) -> float:
    """The value of a 1 in a reduced vector of `dtype`."""
    return 1.0 if dtype.is_floating_point else 2.0**-sums.grid_bits


def loss_of(reduced: Tensor, sums: SumSection) -> float:
    """The loss sum, at the end of the last stage's reduced vector; NaN if it is not finite."""
    loss = reduced[-1].item()
    if not reduced.is_floating_point() and loss == NOT_FINITE:
        return math.nan
    return float(loss * unit_of(reduced.dtype, sums))


def in_floats(numbers: Tensor, sums: SumSection) -> Tensor:
    """Sums in units of the grid converted to fp64; floats unchanged."""
    if numbers.is_floating_point():
        return numbers
    floats = numbers.to(torch.float64).mul_(2.0**-sums.grid_bits)
    return floats.masked_fill_(numbers == NOT_FINITE, math.nan)


@torch.no_grad()
def combine(own: Tensor, parts: Iterable[Tensor], sums: SumSection, out: Tensor | None = None) -> Tensor:
    """The sum of `own` and all parts, which every replica receives: in `out`, or a new tensor on the device of `own`.

    All are (count,) int64 in units of the grid, or fp32. Non-finite sums become NOT_FINITE, or one canonical NaN, so
    that the bytes do not depend on the order of the parts. Raises SumOverflow; `out` is undefined then.
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
        if low < _LOST:  # normalise after each part: the sum of three NOT_FINITE does not fit into 64 bits
            total[total < _LOST] = NOT_FINITE
    if not given:  # the accumulator has already checked the bound of our own sums
        return
    if low < _LOST:
        low = int(torch.where(total == NOT_FINITE, 0, total).min())
    if (peak := max(-low, high)) >= 1 << 53:  # checked on the total, so the order of the parts has no effect
        raise SumOverflow(too_large("the sum over replicas", peak * 2.0**-grid_bits, grid_bits, 53, None))


def _add(total: Tensor, part: Tensor) -> None:
    if total.device.type == "cpu":  # numpy is faster: torch multiplies integers by 1 first
        np.add(total.numpy(), part.numpy(), out=total.numpy())
    else:
        total += part


def _range(values: Tensor) -> tuple[int, int]:
    if not len(values):
        return 0, 0
    if values.device.type == "cpu":
        return int(values.numpy().min()), int(values.numpy().max())  # takes a third of torch's time
    low, high = torch.stack(torch.aminmax(values)).tolist()
    return low, high
