"""The limits of the grid of exact sums, and the sum of losses on it.

Numbers on the grid are integers in units of 2^-b, b = `sums.grid_bits`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarm.manifest import SumSection

NOT_FINITE = -(1 << 62)
"""Represents NaN and infinity among the integers. On the wire, replicas send one canonical NaN instead."""
NARROW = 1 << 31
WIDE = 1 << 53
"""Limits for the sums in an int32 and in an int64 tensor. fp64 represents all integers below WIDE exactly."""


class SumOverflow(ArithmeticError):
    """A gradient or sum is too large for the grid; the message names the tensor and, if known, the step."""


class LossSum:
    """The exact sum of losses, on the host."""

    def __init__(self, sums: SumSection) -> None:
        self._exact = sums.mode == "exact"
        self._grid_bits = sums.grid_bits
        self._scale = 2.0**sums.grid_bits
        self.zero()

    def zero(self) -> None:
        self._units = self._bound = 0
        self._void = False
        self._plain = torch.zeros(1)

    def add(self, loss: float, step: int | None) -> None:
        if not self._exact:
            self._plain += loss
            return
        if not math.isfinite(loss):
            self._void = True
            return
        if abs(loss) > 2.0 ** (51 - self._grid_bits):
            raise SumOverflow(too_large("the loss sum", loss, self._grid_bits, 51, step))
        self._units += (units := round(loss * self._scale))
        self._bound += abs(units)
        if self._bound >= WIDE:
            raise SumOverflow(too_large("the loss sum", self._bound / self._scale, self._grid_bits, 53, step))

    def number(self) -> Tensor:
        """(1,): the sum as in the flat vector."""
        if not self._exact:
            return self._plain.clone()
        return torch.tensor([NOT_FINITE if self._void else self._units])

    @property
    def value(self) -> float:
        if not self._exact:
            return self._plain.item()
        return math.nan if self._void else self._units / self._scale


def peak_of(values: Tensor) -> float:
    """The largest magnitude; NaN if there is a NaN."""
    low, high = torch.aminmax(values)
    return max(-low.item(), high.item()) if not math.isnan(low.item()) else math.nan


def too_large(what: str, value: float, grid_bits: int, exponent: int, step: int | None) -> str:
    where = "" if step is None else f" in step {step}"
    return (
        f"{what} reaches {value:.6g}{where}; with sums.grid_bits = {grid_bits} the limit is "
        f"{2.0 ** (exponent - grid_bits):.6g}: lower sums.grid_bits or the learning rate"
    )
