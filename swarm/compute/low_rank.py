"""The arithmetic of low-rank averaging (PowerSGD: Vogels et al., arXiv 1905.13727), defined bit by bit.

    first round      P = Σ M_i Q            M_i: a member's sums as a matrix, plus its residual. Q: see below
                     P̂ = orthonormal(P)     computed by every member
    second round     Q = Σ M_iᵀ P̂           and also tensors that a low rank would not make smaller
                     M ≈ P̂ Qᵀ               computed by every member; a member's residual is M_i − P̂ (M_iᵀ P̂)ᵀ

The first round uses the Q of the previous step if every member of the roster has it. Otherwise, and for columns of
zeros, Q is drawn from a normal distribution, seeded by the step and the tensor's name. Every replica computes P̂ and
P̂ Qᵀ itself. So both use only elementwise operations in a fixed order, whose bits do not depend on threads or vector
units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swarm.compute.layout import Layout
from swarm.models.initial import seeded_normal

_VANISHED = 1e-12
"""A column of which orthogonalisation leaves less than this share of its length is rounding error, and is set to 0."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One tensor of a stage, viewed as a matrix."""

    name: str
    rows: int
    columns: int
    rank: int
    where: slice
    """Its place in the stage's flat vector."""


class LowRank:
    """The layout of the vectors of both rounds. First round: P of each matrix, (rows, rank), one after another.

    Second round: Q of each matrix, (columns, rank), then all other tensors. Neither vector contains the loss.
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
        """Each matrix with its P, a view (rows, rank) of a first round's vector."""
        return self._factors(vector, [m.rows for m in self.matrices])

    def right_factors(self, vector: Tensor) -> Iterator[tuple[Matrix, Tensor]]:
        """Each matrix with its Q, a view (columns, rank) of a second round's vector."""
        return self._factors(vector, [m.columns for m in self.matrices])

    def plain(self, vector: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The other tensors as views of a second round's vector, each with its place in the stage's flat vector."""
        start = sum(m.columns * m.rank for m in self.matrices)
        for where in self.others:
            yield where, vector[start : (start := start + where.stop - where.start)]

    def start(self, step: int, before: Tensor | None) -> Tensor:
        """The vector with the Q of each matrix at the start of `step`. before: that of the previous step, or None."""
        start = torch.zeros(self.second) if before is None else before.clone()
        for matrix, right in self.right_factors(start):
            fresh = seeded_normal(f"{matrix.name}\0low rank {step}", right.shape, 0)
            right.copy_(torch.where(right.abs().amax(dim=0) > 0, right, fresh))
            right /= right.norm(dim=0)  # otherwise P would grow with every step that reuses Q
        return start

    def _factors(self, vector: Tensor, lengths: Sequence[int]) -> Iterator[tuple[Matrix, Tensor]]:
        ends = accumulate(length * m.rank for length, m in zip(lengths, self.matrices, strict=True))
        for matrix, length, end in zip(self.matrices, lengths, ends, strict=True):
            yield matrix, vector[end - length * matrix.rank : end].view(length, matrix.rank)


def orthonormal(left: Tensor) -> Tensor:
    """`left` with orthonormal columns, by Gram-Schmidt in fp64: (rows, rank) fp32. Dependent columns become zero."""
    columns = [column.clone() for column in left.to(torch.float64).T]
    done: list[Tensor] = []
    for column in columns:
        length = math.sqrt(_total(column * column))
        for _ in range(2):  # twice, because the first pass leaves rounding errors
            for other in done:
                column -= other * _total(other * column)
        rest = math.sqrt(_total(column * column))
        done.append(torch.zeros_like(column) if rest <= _VANISHED * length else column / rest)
    return torch.stack(done, dim=1).to(torch.float32)


def times(left: Tensor, right: Tensor) -> Tensor:
    """left · right, for a peer's own numbers. It multiplies copies, so that the alignment in memory has no effect."""
    return left.clone() @ right.clone()


def product(left: Tensor, right: Tensor) -> Tensor:
    """left · rightᵀ in fp32, (rows, columns), as a sum of outer products of their columns, in order."""
    found = torch.zeros(len(left), len(right), device=left.device)
    for one, other in zip(left.T, right.T, strict=True):
        found += one[:, None] * other[None, :]  # two operations: a fused multiply-add would round only once
    return found


def _total(values: Tensor) -> float:
    """The sum of (count,) fp64 values: the halves are added elementwise until one number remains."""
    values = values.clone()
    count = len(values)
    while count > 1:
        half = (count + 1) // 2
        values[: count - half] += values[half:count].clone()
        count = half
    return values[0].item()
