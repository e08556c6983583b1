"""What crosses when gradients are averaged in low rank (PowerSGD: Vogels et al., arXiv 1905.13727), defined bit by bit.

    first round      P = Σ M_i Q            M_i: a member's sums as a matrix, and what it lost before. Q: below
                     P̂ = orthonormal(P)     everyone
    second round     Q = Σ M_iᵀ P̂           and, beside it, tensors that a low rank would not make smaller
                     M ≈ P̂ Qᵀ               everyone; a member has lost M_i − P̂ (M_iᵀ P̂)ᵀ

The Q of a step is that of the step before, if every member of the roster has it; else, and for columns of zeros, normal
deviates that follow from the step and the tensor's name. Every replica makes P̂ and P̂ Qᵀ for itself, so both are made
of elementwise operations in a fixed order alone: neither threads nor vector units decide a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swarm.compute.sums import Layout
from swarm.models.initial import seeded_normal

_VANISHED = 1e-12
"""A column that loses all but this share of its length to the columns before it is rounding error: it becomes zero."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One tensor of a stage as a matrix."""

    name: str
    rows: int
    columns: int
    rank: int
    where: slice
    """Of the stage's flat vector."""


class LowRank:
    """Where everything lies. The first round's vector: P of each matrix, (rows, rank), one after the other.

    The second round's: Q of each matrix, (columns, rank), then all other tensors. The loss is in neither.
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self.matrices: list[Matrix] = []
        self.others: list[slice] = []
        for name, shape, where in zip(layout.names, layout.shapes, layout.slices, strict=True):
            rows = shape[0] if len(shape) else 1
            columns = math.prod(shape) // max(1, rows)
            if len(shape) > 1 and rank * (rows + columns) < rows * columns:
                self.matrices.append(Matrix(name, rows, columns, rank, where))
            else:
                self.others.append(where)
        self.first = sum(m.rows * m.rank for m in self.matrices)
        """Length of the first round's vector."""
        self.second = sum(m.columns * m.rank for m in self.matrices) + sum(w.stop - w.start for w in self.others)

    def left_factors(self, vector: Tensor) -> Iterator[tuple[Matrix, Tensor]]:
        """Views (rows, rank) of a first round's vector."""
        return self._factors(vector, [m.rows for m in self.matrices])

    def right_factors(self, vector: Tensor) -> Iterator[tuple[Matrix, Tensor]]:
        """Views (columns, rank) of a second round's vector."""
        return self._factors(vector, [m.columns for m in self.matrices])

    def plain(self, vector: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Views of the other tensors in a second round's vector, each with its place in the stage's flat vector."""
        start = sum(m.columns * m.rank for m in self.matrices)
        for where in self.others:
            yield where, vector[start : (start := start + where.stop - where.start)]

    def start(self, step: int, before: Tensor | None) -> Tensor:
        """The second round's vector that the Q of `step` are taken of. before: that of the last step, None for none."""
        start = torch.zeros(self.second) if before is None else before.clone()
        for matrix, right in self.right_factors(start):
            fresh = seeded_normal(f"{matrix.name}\0low rank {step}", right.shape, 0)
            right.copy_(torch.where(right.abs().amax(dim=0) > 0, right, fresh))
            right /= right.norm(dim=0)  # else P would grow with every warm step
        return start

    def _factors(self, vector: Tensor, lengths: Sequence[int]) -> Iterator[tuple[Matrix, Tensor]]:
        ends = accumulate(length * m.rank for length, m in zip(lengths, self.matrices, strict=True))
        for matrix, length, end in zip(self.matrices, lengths, ends, strict=True):
            yield matrix, vector[end - length * matrix.rank : end].view(length, matrix.rank)


def orthonormal(left: Tensor) -> Tensor:
    """Its columns made orthonormal by Gram-Schmidt in fp64, (rows, rank) fp32. Those that depend on others are zero."""
    columns = [column.clone() for column in left.to(torch.float64).T]
    done: list[Tensor] = []
    for column in columns:
        length = math.sqrt(_total(column * column))
        for _ in range(2):  # once more: the first time leaves what rounding has
            for other in done:
                column -= other * _total(other * column)
        rest = math.sqrt(_total(column * column))
        done.append(torch.zeros_like(column) if rest <= _VANISHED * length else column / rest)
    return torch.stack(done, dim=1).to(torch.float32)


def times(left: Tensor, right: Tensor) -> Tensor:
    """left · right, of copies: where a matrix lies in memory must not decide a bit. For one peer's own numbers."""
    return left.clone() @ right.clone()


def product(left: Tensor, right: Tensor) -> Tensor:
    """left · rightᵀ in fp32, (rows, columns): one column of both after the other."""
    found = torch.zeros(len(left), len(right), device=left.device)
    for one, other in zip(left.T, right.T, strict=True):
        found += one[:, None] * other[None, :]  # two operations: a fused one would round once
    return found


def _total(values: Tensor) -> float:
    """The sum of (count,) fp64 values: halves are added elementwise until one number is left."""
    values = values.clone()
    count = len(values)
    while count > 1:
        half = (count + 1) // 2
        values[: count - half] += values[half:count].clone()
        count = half
    return values[0].item()
