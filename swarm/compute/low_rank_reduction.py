"""The low-rank reduction of one stage: two rounds of small sums; the approximation error is kept for the next step.

low_rank.py defines the arithmetic. The sums of both rounds are sent as fp32, with the exact loss. A roster of one
member sends nothing and has no error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarm import codecs
from swarm.compute.coded import CodedBuckets, FeedbackReduction, added
from swarm.compute.layout import Layout
from swarm.compute.low_rank import LowRank, Matrix, orthonormal, product, times
from swarm.compute.reduction import BUCKET_ELEMENTS
from swarm.compute.sums import Accumulator
from swarm.compute.totals import in_floats
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import EncodePart, SumBucket

_ALL = 0
"""The bucket number under which the residual of the whole vector is stored."""


class LowRankBuckets(CodedBuckets):
    """The buckets of the first round's vector, then those of the second round's vector, with the loss at its end."""

    def __init__(self, layout: Layout, sums: SumSection) -> None:
        super().__init__(layout, sums, codecs.get("none"))
        self.ranks = LowRank(layout, sums.rank)
        self.length = self.ranks.first + self.ranks.second + layout.with_loss
        self.first_round = -(-self.ranks.first // BUCKET_ELEMENTS)
        self.count = self.first_round + max(1, -(-(self.length - self.ranks.first) // BUCKET_ELEMENTS))
        longest = max((max(m.rows, m.columns) for m in self.ranks.matrices), default=1)
        self._limit *= math.sqrt(longest)  # bound on the projection of a row or a column

    def slice(self, bucket: int) -> slice:
        if not 0 <= bucket < self.count:
            raise self._unknown(bucket)
        start, end = 0, self.ranks.first
        if bucket >= self.first_round:
            start, end, bucket = self.ranks.first, self.length, bucket - self.first_round
        return slice(start + bucket * BUCKET_ELEMENTS, min(end, start + (bucket + 1) * BUCKET_ELEMENTS))


class LowRankReduction(FeedbackReduction):
    """The low-rank reduction.

    `part` and `sum` of second-round buckets must be called after the first round is stored.
    """

    _buckets: LowRankBuckets

    def __init__(self, accumulator: Accumulator, sums: SumSection) -> None:
        super().__init__(accumulator, LowRankBuckets(accumulator.layout, sums), sums)
        self._ranks = self._buckets.ranks
        self._crossed = torch.zeros(self._buckets.length)
        """Sums of both rounds of the current attempt, without the loss."""
        self._loss = 0.0
        self._bases: list[tuple[Matrix, Tensor]] = []
        """P̂ of each matrix in the current attempt; filled after the first round is stored."""
        self._mine: _Share | None = None
        self._alone: Attempt | None = None
        """The current attempt, if this peer is its only member."""

    def part(self, action: EncodePart) -> memoryview:
        """The payload of our own share of a bucket. Raises SumOverflow; LookupError if a residual is missing."""
        values, loss = self._share(action)
        return memoryview(self._buckets.encode(action.bucket, values, loss, None)[0])

    def sum(self, action: SumBucket) -> memoryview:
        """The payload of the sum of a bucket. Raises FrameError, SumOverflow; LookupError if a residual is missing."""
        if not action.parts:
            self._alone = action.attempt
            return memoryview(b"")
        shares = [self._buckets.decode(action.bucket, part) for part in action.parts]
        shares.insert(action.place, self._share(action))
        total, loss = added(shares)
        return memoryview(self._buckets.encode(action.bucket, total, loss, None)[0])

    def store(self, attempt: Attempt, bucket: int, payload: object) -> None:
        """Store the sum of a bucket from its reducer. Raises FrameError, SumOverflow."""
        where = self._buckets.slice(bucket)
        values, loss = (None, 0.0) if attempt == self._alone else self._buckets.decode(bucket, payload)
        self._take(attempt, bucket)
        if self._buckets.ends_in_loss(bucket):
            self._loss = loss
            where = slice(where.start, where.stop - 1)
        self._crossed[where] = math.nan if values is None else values
        self._stored.add(bucket)
        if len(self._stored) == self._buckets.count:
            self._finish(attempt)

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        super().applied(attempt, skipped=skipped)
        self._mine = None

    def cancel(self, attempt: Attempt) -> None:
        super().cancel(attempt)
        if self._mine is not None and self._mine.attempt == attempt:
            self._mine = None

    def _turn_to(self, attempt: Attempt | None) -> None:
        if attempt != self._attempt:
            self._bases = []
        super()._turn_to(attempt)

    def _finish(self, attempt: Attempt) -> None:
        """Compute the reduced vector when all sums have arrived."""
        if attempt == self._alone:
            self._reduced.copy_(self._own(self._accumulator.numbers(slice(0, self._accumulator.layout.length)).cpu()))
            return
        second = self._second(self._crossed)
        for (matrix, left), (_, right) in zip(self._left(), self._ranks.right_factors(second), strict=True):
            self._reduced[matrix.where] = product(left, right).view(-1).to(self._dtype)
        for where, values in self._ranks.plain(second):
            self._reduced[where] = values.to(self._dtype)
        if self._accumulator.layout.with_loss:
            self._reduced[-1] = self._loss if math.isfinite(self._loss) else math.nan
        self._residuals.sum_lost(attempt, _ALL, second.clone())

    def _share(self, action: EncodePart | SumBucket) -> tuple[Tensor, float]:
        """Our own share of a bucket, and of the loss if the bucket contains it (else 0)."""
        if self._mine is None or self._mine.attempt != action.attempt:
            self._mine = self._begun(action)
        if action.bucket >= self._buckets.first_round:
            self._project(self._mine)
        where = self._buckets.slice(action.bucket)
        if not self._buckets.ends_in_loss(action.bucket):
            return self._mine.crossing[where], 0.0
        return self._mine.crossing[where.start : where.stop - 1], self._accumulator.loss

    def _begun(self, action: EncodePart | SumBucket) -> _Share:
        """Our own sums plus the residual, and their share of the first round."""
        before = self._residuals.share(action.attempt, _ALL, action.carried)
        layout = self._accumulator.layout
        numbers = self._accumulator.numbers(slice(0, layout.length - layout.with_loss))
        whole = in_floats(numbers, self._sums).cpu().to(torch.float64)
        whole = whole if before is None else whole + before
        mine = _Share(action.attempt, whole.to(torch.float32), self._buckets.length)
        start = self._ranks.start(action.attempt.pass_id.step, self._residuals.sum(action.attempt, _ALL, action.warm))
        lefts, rights = self._ranks.left_factors(mine.crossing), self._ranks.right_factors(start)
        for (matrix, left), (_, right) in zip(lefts, rights, strict=True):
            left.copy_(times(mine.matrix(matrix), right))
        return mine

    def _project(self, mine: _Share) -> None:
        """Compute our own share of the second round and the new residual, once per attempt."""
        if mine.projected:
            return
        if self._buckets.first_round and mine.attempt != self._attempt:
            raise ValueError(f"the second round of {mine.attempt} starts before the first is stored")
        mine.projected = True
        lost = torch.zeros_like(mine.whole)
        second = self._second(mine.crossing)
        for (matrix, left), (_, right) in zip(self._left(), self._ranks.right_factors(second), strict=True):
            right.copy_(times(mine.matrix(matrix).T, left))
            lost[matrix.where] = (mine.matrix(matrix) - times(left, right.T)).view(-1)
        for where, values in self._ranks.plain(second):
            values.copy_(mine.whole[where])
        self._residuals.share_lost(mine.attempt, _ALL, lost)

    def _left(self) -> list[tuple[Matrix, Tensor]]:
        missing = self._buckets.first_round - len(self._stored.intersection(range(self._buckets.first_round)))
        if missing:
            raise ValueError(f"the second round starts while {missing} buckets of the first are missing")
        if not self._bases:
            self._bases = [(m, orthonormal(left)) for m, left in self._ranks.left_factors(self._crossed)]
        return self._bases

    def _second(self, vector: Tensor) -> Tensor:
        """The second round's part of a vector of both, without the loss."""
        return vector[self._ranks.first : self._ranks.first + self._ranks.second]


class _Share:
    """Our own contribution to an attempt."""

    def __init__(self, attempt: Attempt, whole: Tensor, length: int) -> None:
        self.attempt = attempt
        self.whole = whole
        """Our sums plus the residual, fp32, without the loss."""
        self.crossing = torch.zeros(length)
        """Our share of both rounds."""
        self.projected = False

    def matrix(self, matrix: Matrix) -> Tensor:
        return self.whole[matrix.where].view(matrix.rows, matrix.columns)
