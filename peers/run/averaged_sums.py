"""The sums of a stage in the reference, for a swarm whose replicas average compressed gradients.

The arithmetic is that of swarm/compute/coded.py and low_rank_reduction.py, written a second time, over whole vectors.
The decision record tells which member added which microbatches in a step, and which residuals were used. Without a
record, each stage has one replica, which compresses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from peers.run.replay import ReplayError
from swarm import codecs
from swarm.compute.block_grid import BlockGrid
from swarm.compute.layout import Layout
from swarm.compute.low_rank import LowRank, orthonormal, product, times
from swarm.compute.reduction import BUCKET_ELEMENTS
from swarm.compute.sums import Accumulator
from swarm.compute.totals import combine, in_floats, reduced_dtype
from swarm.manifest import SumSection
from swarm.protocol.messages import Contribution

_ALONE = (Contribution(-1, -1),)  # all microbatches


class AveragedSums:
    """`begin` a step, `add` its microbatches, take the `reduced` sums."""

    def __init__(self, layout: Layout, sums: SumSection, grid: BlockGrid | None = None) -> None:
        """`grid`: the grid of the stage, if blocks have their own; it must be set to a step before that step begins."""
        self.layout = layout
        self._grid = grid
        self._sums = sums
        self._way = _LowRank(layout, sums.rank) if sums.rank else _Coded(layout, sums) if sums.compresses else None
        self._members = [Accumulator(layout, sums, grid=grid)]
        self._contributions: Sequence[Contribution] = _ALONE
        self._step = 0

    def begin(self, step: int, contributions: Sequence[Contribution] = ()) -> None:
        """Begin a step. Raises ReplayError for unknown residuals."""
        self._step = step
        self._contributions = contributions or _ALONE
        while len(self._members) < len(self._contributions):
            self._members.append(Accumulator(self.layout, self._sums))
        for sums in self._members:
            sums.zero()
        known = len(self._way.shares) if self._way is not None else 0
        if any(each.carried >= known for each in self._contributions):
            raise ReplayError(
                f"step {step} adds residuals of step {step - 1}, which are not known here: train from version 0"
            )

    def add(self, m: int, gradients: Sequence[Tensor], loss: float | None) -> None:
        """Add microbatch `m` to the sums of the member that computed it. Raises SumOverflow, ReplayError."""
        for sums, each in zip(self._members, self._contributions, strict=False):
            if each.microbatches >> m & 1:
                sums.add(gradients, loss, step=self._step, microbatch=m)
                return
        raise ReplayError(f"microbatch {m} of step {self._step} is in no member's sum")

    def reduced(self, other: AveragedSums | None = None) -> Tensor:
        """The sums that every replica applies, as in swarm/compute/totals.py. Raises SumOverflow, codecs.CodecError.

        `other`: the sums of the stage that holds this stage's shared parameters too; they are added before rounding.
        """
        members = self._members[: len(self._contributions)]
        if self._way is None or len(members) == 1:
            total = combine(members[0].numbers(whole := slice(0, self.layout.length)), (), self._sums)
            if other is not None:
                both = slice(0, self.layout.shared_length)
                total[both] = combine(total[both], (other._members[0].numbers(both),), self._sums)
            if self._grid is not None:
                return self._grid.settle_(total, whole)
            if self._way is None:
                return total
            self._way.alone()
            return in_floats(total, self._sums)
        end = self.layout.length - self.layout.with_loss
        reduced = torch.full((self.layout.length,), math.nan, dtype=reduced_dtype(self._sums))
        self._way.average(self._step, [sums.flat[:end] for sums in members], self._contributions, reduced[:end])
        if self.layout.with_loss:
            loss = sum(sums.loss for sums in members)
            reduced[-1] = loss if math.isfinite(loss) else math.nan
        return reduced


class _Coded:
    """`shares`: the compression error of each member's share in the previous step, by roster; `sums`: that of the
    sums.
    """

    def __init__(self, layout: Layout, sums: SumSection) -> None:
        self.shares: list[Tensor | None] = []
        self.sums: Tensor | None = None
        self._codec = codecs.averaging(sums.averaging)

    def alone(self) -> None:
        """Apply a step of one replica, which has no compression error."""
        self.shares, self.sums = [None], None

    def average(self, step: int, members: list[Tensor], told: Sequence[Contribution], reduced: Tensor) -> None:
        shares: list[Tensor] = [torch.zeros(len(flat)) for flat in members]
        sums = torch.zeros(len(reduced))
        for bucket, start in enumerate(range(0, len(reduced), BUCKET_ELEMENTS)):
            where = slice(start, min(start + BUCKET_ELEMENTS, len(reduced)))
            crossed = []
            for flat, lost, each in zip(members, shares, told, strict=True):
                before = self.shares[each.carried] if each.carried >= 0 else None
                crossed.append(self._across(flat[where], before, where, lost))
            if any(share is None for share in crossed):
                continue
            reducer = told[bucket % len(told)].carried
            kept = self.sums if reducer >= 0 and bucket % len(self.shares) == reducer else None
            if (both := self._across(_added(crossed), kept, where, sums)) is not None:
                reduced[where] = both.to(reduced.dtype)
        self.shares, self.sums = [*shares], sums

    def _across(self, values: Tensor, before: Tensor | None, where: slice, lost: Tensor) -> Tensor | None:
        """The reconstruction of `values` plus an earlier error; the new error is written to `lost[where]`. None: not
        finite.
        """
        wanted = values.double()
        if before is not None:
            wanted = wanted + before[where]
        wanted = wanted.float()
        if not bool(torch.isfinite(wanted).all()):
            return None
        crossed = self._codec.decode(self._codec.encode(wanted), wanted.shape)
        lost[where] = wanted - crossed
        return crossed


class _LowRank:
    """`shares`: the part of each member's share that the low rank left out in the last step; `right`: its final Q."""

    def __init__(self, layout: Layout, rank: int) -> None:
        self.shares: list[Tensor | None] = []
        self.right: Tensor | None = None
        self._ranks = LowRank(layout, rank)

    def alone(self) -> None:
        """Record a step of a single replica. Its sums are not compressed, so nothing is left out."""
        self.shares, self.right = [None], None

    def average(self, step: int, members: list[Tensor], told: Sequence[Contribution], reduced: Tensor) -> None:
        wholes = []
        for flat, each in zip(members, told, strict=True):
            before = self.shares[each.carried] if each.carried >= 0 else None
            wholes.append((flat.double() if before is None else flat.double() + before).float())
        shares = [torch.zeros(len(reduced)) for _ in members]
        start = self._ranks.start(step, self.right if all(each.carried >= 0 for each in told) else None)
        ended = torch.zeros(self._ranks.second)
        rights = zip(self._ranks.right_factors(start), self._ranks.right_factors(ended), strict=True)
        for (matrix, old), (_, new) in rights:
            parts = [whole[matrix.where].view(matrix.rows, matrix.columns) for whole in wholes]
            left = orthonormal(_added([times(part, old) for part in parts]).float())
            own = [times(part.T, left) for part in parts]
            new.copy_(_added(own))
            for part, right, lost in zip(parts, own, shares, strict=True):
                lost[matrix.where] = (part - times(left, right.T)).view(-1)
            reduced[matrix.where] = product(left, new).view(-1).to(reduced.dtype)
        for where, values in self._ranks.plain(ended):
            values.copy_(_added([whole[where] for whole in wholes]))
            reduced[where] = values.to(reduced.dtype)
        self.shares, self.right = [*shares], ended


def _added(shares: Sequence[Tensor | None]) -> Tensor:
    """The sum in fp64, in the order of the roster."""
    total: Tensor | None = None
    for share in shares:
        assert share is not None
        total = share.double() if total is None else total + share
    assert total is not None
    return total
