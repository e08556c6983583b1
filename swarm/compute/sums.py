"""Sums and norms: the one place that says how gradients are added.

A stage's gradient is one flat vector in parameter order (`Layout`). The last stage's has one more element, the loss
sum, so that the loss is reduced exactly once, with the gradient it belongs to.

Mode "exact": each microbatch's gradient is rounded to multiples of 2^-b by (g + C) − C in fp64, C = 1.5·2^(52−b). Such
multiples add in fp64 without error, in any order, while every sum stays below 2^(53−b), which is checked. Mode "fp32"
adds as it comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swarm.manifest import ModelSection, SumSection
from swarm.models.kinds import build_stage

_ROUND_BLOCK = 1 << 18  # elements: few calls into torch, and the fp64 scratch still stays in a cache
_NORM_BLOCK = 1 << 14  # elements: part of the definition of the norm, never change it


class SumOverflow(ArithmeticError):
    """A gradient or sum too large for the grid; names the tensor and, where known, the step."""


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a stage lies in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    with_loss: bool
    """The last stage: one trailing element holds the loss sum; it is no part of the norm."""
    shared: int = 0
    """How many of the parameters, from the first, another stage holds too: their sums are made of both stages'."""

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor], *, with_loss: bool, shared: int = 0) -> Layout:
        return cls(tuple(parameters), tuple(p.shape for p in parameters.values()), with_loss, shared)

    @classmethod
    def of_stage(cls, model: ModelSection, stage: int) -> Layout:
        """Of one stage of a model. Allocates nothing."""
        module = build_stage(model, stage, device="meta", seed=None)
        return cls.of(dict(module.named_parameters()), with_loss=module.last, shared=module.shared)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> tuple[slice, ...]:
        ends = tuple(accumulate(self.sizes))
        return tuple(slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True))

    @property
    def length(self) -> int:
        """Elements of the flat vector."""
        return sum(self.sizes) + self.with_loss

    @property
    def shared_length(self) -> int:
        """Elements, from the first, that another stage's flat vector begins with too."""
        return sum(self.sizes[: self.shared])

    @property
    def counted(self) -> tuple[slice, ...]:
        """What the norm is taken of. Shared parameters count once: in the first stage, not in the last."""
        return self.slices[self.shared :] if self.with_loss else self.slices


class Accumulator:
    """Sum over microbatches of one stage's gradients.

    `flat`: (layout.length,) fp64 ("exact") or fp32 ("fp32") on `device`.
    """

    def __init__(self, layout: Layout, sums: SumSection, device: str | torch.device = "cpu") -> None:
        self.layout = layout
        self.exact = sums.mode == "exact"
        self.flat = torch.zeros(layout.length, dtype=sum_dtype(sums), device=device)
        self._grid_bits = sums.grid_bits
        self._offset = 1.5 * 2.0 ** (52 - sums.grid_bits)
        self._slices = layout.slices
        self._bounds = [0.0] * len(layout.names)  # of |sum| per tensor: sum of peaks, or the peak of the sum
        block = _ROUND_BLOCK if torch.device(device).type == "cpu" else max((1, *layout.sizes))
        self._scratch = torch.empty(min(block, max((1, *layout.sizes))), dtype=torch.float64, device=device)

    def zero(self) -> None:
        self.flat.zero_()
        self._bounds = [0.0] * len(self._bounds)

    def add(self, gradients: Sequence[Tensor], loss: float | None = None, *, step: int | None = None) -> None:
        """Add one microbatch: fp32 gradients in layout order and, on the last stage, its fp32 loss sum.

        NaN and infinity are added as they are and make the norm non-finite. Raises SumOverflow; some tensors may
        have been added by then, so the whole sum is void.
        """
        assert (loss is not None) == self.layout.with_loss
        for index, gradient in enumerate(gradients):
            part = self.flat[self._slices[index]]
            if self.exact:
                self._check_gradient(index, gradient, step)
                self._add_rounded(gradient.reshape(-1), part)
                self._check_sum(index, part, step)
            else:
                part.add_(gradient.reshape(-1))
        if loss is not None:
            self._add_loss(loss, step)

    def _add_rounded(self, gradient: Tensor, part: Tensor) -> None:
        block = len(self._scratch)
        for start in range(0, len(gradient), block):
            piece = gradient[start : start + block]
            rounded = self._scratch[: len(piece)]
            rounded.copy_(piece)  # to fp64 first: adding the scalar to fp32 would round in fp32
            rounded.add_(self._offset).sub_(self._offset)
            part[start : start + block].add_(rounded)

    def _check_gradient(self, index: int, gradient: Tensor, step: int | None) -> None:
        peak = peak_of(gradient)
        if math.isfinite(peak) and peak > 2.0 ** (51 - self._grid_bits):
            raise SumOverflow(_too_large(f"a gradient of {self.layout.names[index]}", peak, self._grid_bits, 51, step))
        self._bounds[index] += peak

    def _check_sum(self, index: int, part: Tensor, step: int | None) -> None:
        if self._bounds[index] < 2.0 ** (53 - self._grid_bits):  # the bound proves it; else look
            return
        peak = self._bounds[index] = peak_of(part)
        if math.isfinite(peak) and peak >= 2.0 ** (53 - self._grid_bits):
            raise SumOverflow(_too_large(f"the sum of {self.layout.names[index]}", peak, self._grid_bits, 53, step))

    def _add_loss(self, loss: float, step: int | None) -> None:
        if self.exact and math.isfinite(loss):
            if abs(loss) > 2.0 ** (51 - self._grid_bits):
                raise SumOverflow(_too_large("the loss sum", loss, self._grid_bits, 51, step))
            loss = (loss + self._offset) - self._offset
        self.flat[-1] += loss
        total = abs(self.flat[-1].item())
        if self.exact and math.isfinite(total) and total >= 2.0 ** (53 - self._grid_bits):
            raise SumOverflow(_too_large("the loss sum", total, self._grid_bits, 53, step))


def combine(own: Tensor, parts: Sequence[Tensor], sums: SumSection, out: Tensor | None = None) -> Tensor:
    """own + parts[0] + parts[1] + …: what every replica receives. In `out`, on the CPU, or freshly allocated.

    Flat, in the mode's dtype. Non-finite values become one canonical NaN, so that equal sets give equal bytes in
    any order. Raises SumOverflow, with `out` undefined.
    """
    total = torch.empty_like(own, device="cpu") if out is None else out
    total.copy_(own.detach())
    limit = 2.0 ** (53 - sums.grid_bits)
    peak = peak_of(total)
    for part in parts:
        total += part
        peak = peak_of(total)
        if sums.mode == "exact" and math.isfinite(peak) and peak >= limit:
            raise SumOverflow(_too_large("the sum over replicas", peak, sums.grid_bits, 53, None))
    if not math.isfinite(peak):
        total[~torch.isfinite(total)] = math.nan
    return total


def squared_norm(flat: Tensor, layout: Layout) -> float:
    """Sum of squares of what counts of a CPU flat vector: per tensor in fp64, then added in layout order.

    Within a tensor: blocks of 16384 squares are added elementwise, one after another; then the block is folded in half
    until one number is left. Elementwise operations only, so neither threads nor vector units decide a bit.
    """
    total = 0.0
    for part in layout.counted:
        total += _sum_of_squares(flat[part])
    return total


def peak_of(values: Tensor) -> float:
    """Largest magnitude; NaN if there is one."""
    low, high = torch.aminmax(values)
    return max(-low.item(), high.item()) if not math.isnan(low.item()) else math.nan


def sum_dtype(sums: SumSection) -> torch.dtype:
    """What sums, parts and reduced vectors are made of."""
    return torch.float64 if sums.mode == "exact" else torch.float32


def _sum_of_squares(values: Tensor) -> float:
    count = min(len(values), _NORM_BLOCK)
    lanes = torch.zeros(count, dtype=torch.float64)
    for start in range(0, len(values), _NORM_BLOCK):
        squares = values[start : start + _NORM_BLOCK].to(torch.float64)
        lanes[: len(squares)] += squares * squares  # two operations: a fused one would round once
    while count > 1:
        half = (count + 1) // 2
        lanes[: count - half] += lanes[half:count].clone()
        count = half
    return lanes[0].item()


def _too_large(what: str, value: float, grid_bits: int, exponent: int, step: int | None) -> str:
    where = "" if step is None else f" in step {step}"
    return (
        f"{what} reaches {value:.6g}{where}, the grid of sums.grid_bits = {grid_bits} carries "
        f"{2.0 ** (exponent - grid_bits):.6g}: lower sums.grid_bits or the learning rate"
    )
