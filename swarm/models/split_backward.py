"""Layers with a split backward: the gradient of the input is computed at once, that of the weight later (zero bubble).

The previous stage waits for the gradient of the input, but no peer waits for a weight gradient until the reduction (Qi
et al., "Zero Bubble Pipeline Parallelism", 2024). A layer passes its input and the gradient of its output to the
`SplitBackward` of its stage. The weight gradient is later computed from them with one product, without a second pass
through the graph. Both ways run the same operations as `F.linear` and `F.embedding`, so the gradients have the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What is needed to compute the gradient of a weight, for one use of the weight in one microbatch."""

    weight: Tensor
    read: Tensor
    """For a product, its input (rows, in); for an embedding, the ids (...) int64."""
    gradient: Tensor
    """Gradient of the output: (rows, out)."""

    def computed(self) -> Tensor:
        """The gradient of the weight, with the weight's shape and dtype."""
        if self.read.dtype == torch.int64:
            return _of_table(self.read, self.gradient, self.weight)
        return _of_factor(self.read, self.gradient, self.weight)


class SplitBackward:
    """Collects the inputs of the weight gradients from the layers of one stage, inside `splitting`."""

    def __init__(self) -> None:
        self._kept: list[Kept] | None = None

    def attach(self, module: nn.Module) -> None:
        """Make the layers of `module` that support it use this object."""
        for layer in module.modules():
            if isinstance(layer, Linear | Embedding):
                layer.split_backward = self

    @contextmanager
    def splitting(self) -> Iterator[list[Kept]]:
        """While this context is open, a backward fills the list and computes no gradients of these weights.

        autograd returns None for them, so allow_unused must be set.
        """
        kept = self._kept = []
        try:
            yield kept
        finally:
            self._kept = None

    def keep(self, weight: Tensor, read: Tensor, gradient: Tensor) -> bool:
        """Inside `splitting`, keep the inputs and return True; else return False. Any thread may call it."""
        if self._kept is None:
            return False
        self._kept.append(Kept(weight, read.detach(), gradient.detach()))  # without their graph
        return True


class Linear(nn.Linear):
    """x·weightᵀ without a bias, with a split backward."""

    split_backward: SplitBackward | None = None

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # the name that torch gives it
        return _product(input, self.weight, self.split_backward)


class Embedding(nn.Embedding):
    """A table of rows by id, with a split backward. `project` is the head that shares the table."""

    split_backward: SplitBackward | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.split_backward is None or not torch.is_grad_enabled():
            return super().forward(input)
        found: Tensor = _Lookup.apply(input, self.weight, self.split_backward)  # type: ignore[no-untyped-call]
        return found

    def project(self, x: Tensor) -> Tensor:
        """x·weightᵀ: (..., dim) → (..., rows of the table)."""
        return _product(x, self.weight, self.split_backward)


def _product(x: Tensor, weight: Tensor, split: SplitBackward | None) -> Tensor:
    if split is None or not torch.is_grad_enabled():
        return F.linear(x, weight)
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    product: Tensor = _Product.apply(x, weight, split)  # type: ignore[no-untyped-call]
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, split: SplitBackward) -> Tensor:
        factor = weight.to(x.dtype)
        ctx.save_for_backward(x, factor)
        ctx.weight, ctx.split = weight, split
        return F.linear(x, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, factor = ctx.saved_tensors
        (gradient,) = gradients
        rows, read = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_input = rows.mm(factor).view(x.shape) if ctx.needs_input_grad[0] else None
        if ctx.split.keep(ctx.weight, read, rows):
            return of_input, None, None
        return of_input, _of_factor(read, rows, ctx.weight), None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, split: SplitBackward) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.split = weight, split
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        (gradient,) = gradients
        if ctx.split.keep(ctx.weight, ids, gradient):
            return None, None, None
        return None, _of_table(ids, gradient, ctx.weight), None


def _of_factor(read: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    return gradient.t().mm(read).to(weight.dtype)


def _of_table(ids: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.embedding_dense_backward(gradient, ids, len(weight), -1, False)
    return found
