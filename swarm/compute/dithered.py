"""The reduction of one stage whose blocks have their own grids (block_grid.py): exact sums in few bits.

A part contains sums in steps of the blocks' grids. The reducer adds the parts, rounds the total to the grid of totals,
and sends it. Both are integers in Rice's code. Readers need the grid, which all replicas know, to interpret them.

    payload: the loss, i64 in units of 2^-grid_bits, at the end of the last stage | the other numbers (rice.py)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.compute import rice
from swarm.compute.block_grid import BlockGrid
from swarm.compute.body import FrameError
from swarm.compute.grid import NOT_FINITE, WIDE
from swarm.compute.layout import Layout
from swarm.compute.packing import PackingError
from swarm.compute.reduction import Buckets, Reduction
from swarm.compute.sums import Accumulator
from swarm.compute.totals import combine
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import EncodePart, SumBucket

HEAD_BYTES = 8
"""Largest number of bytes of a payload before its numbers."""
_LOSS = struct.Struct("<q")


class DitheredBuckets(Buckets):
    """The buckets of a stage. Their numbers count steps of a grid; a reader must know this grid."""

    def __init__(self, layout: Layout, sums: SumSection) -> None:
        super().__init__(layout, sums)
        self._with_loss = layout.with_loss

    def check(self, bucket: int, payload: object) -> None:
        self._opened(bucket, payload)

    def read(self, bucket: int, payload: object, out: Tensor | None = None) -> Tensor:
        """The numbers of a bucket, (count,) int64 on the CPU. Raises FrameError; `out` is undefined then."""
        loss, numbers = self._opened(bucket, payload)
        found = torch.empty(self._numbers(bucket), dtype=torch.int64) if out is None else out
        count = len(found) - (loss is not None)
        if loss is not None:
            found[-1] = loss
        rice.unpack(numbers, count, self._grid_bits, found.numpy()[:count])
        return found

    def write_bucket(self, bucket: int, numbers: Tensor) -> memoryview:
        """The payload of a bucket's numbers, int64 on the CPU."""
        if not self._ends_in_loss(bucket):
            return memoryview(rice.pack(numbers.numpy(), self._grid_bits))
        head = _LOSS.pack(int(numbers[-1]))
        return memoryview(head + rice.pack(numbers[:-1].numpy(), self._grid_bits))

    def _opened(self, bucket: int, payload: object) -> tuple[int | None, Buffer]:
        """Check a payload: (the loss if the bucket contains it, else None; the code of the others).

        Raises FrameError.
        """
        count, with_loss = self._numbers(bucket), self._ends_in_loss(bucket)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} is of type {type(payload).__name__}, expected bytes")
        view, loss = memoryview(payload).cast("B"), None
        if with_loss:
            if len(view) < _LOSS.size:
                raise FrameError(f"bucket {bucket} has {len(view)} bytes, expected at least {_LOSS.size}")
            loss, view = int(_LOSS.unpack_from(view)[0]), view[_LOSS.size :]
            if abs(loss) >= WIDE and loss != NOT_FINITE:
                raise FrameError(f"bucket {bucket} has a loss of {loss} units; the limit of the grid is {WIDE}")
        try:
            rice.check(view, count - with_loss, self._grid_bits)
        except PackingError as error:
            raise FrameError(f"bucket {bucket}: {error}") from None
        return loss, view

    def _ends_in_loss(self, bucket: int) -> bool:
        return self._with_loss and bucket == self.count - 1


class DitheredReduction(Reduction):
    """The reduction with grids of blocks. It runs on the CPU, on whatever device the sums are."""

    def __init__(self, accumulator: Accumulator, sums: SumSection, grid: BlockGrid) -> None:
        super().__init__(accumulator, Buckets(accumulator.layout, sums), sums)
        self._dithered = DitheredBuckets(accumulator.layout, sums)
        self._grid = grid

    def part(self, action: EncodePart) -> memoryview:
        """The payload of our own sums of a bucket."""
        where = self._buckets.slice(action.bucket)
        numbers = self._accumulator.numbers(where).cpu()
        return self._dithered.write_bucket(action.bucket, self._grid.lowered(numbers, where, total=False))

    def sum(self, action: SumBucket) -> memoryview:
        """The payload of our own sums plus the parts of others, rounded to the grid of totals; empty without others.

        Raises FrameError, SumOverflow.
        """
        where = self._buckets.slice(action.bucket)
        own = self._accumulator.numbers(where).to(self._where)
        self._take(action.attempt, action.bucket)
        parts = (
            self._grid.raised(self._dithered.read(action.bucket, part), where, total=False) for part in action.parts
        )
        total = self._grid.settle_(combine(own, parts, self._sums, out=self._reduced[where]), where)
        self._summed.add(action.bucket)
        if not action.parts:
            return memoryview(b"")
        return self._dithered.write_bucket(action.bucket, self._grid.lowered(total, where, total=True))

    def written(self, attempt: Attempt) -> Iterator[Buffer]:
        """The payloads of the whole reduced vector, as they were sent, for peers that catch up: they know its grid."""
        reduced = self.reduced(attempt)
        for bucket, where in enumerate(self._buckets.slices):
            yield self._dithered.write_bucket(bucket, self._grid.lowered(reduced[where], where, total=True))

    def _read(self, bucket: int, payload: object) -> Tensor:
        return self._grid.raised(self._dithered.read(bucket, payload), self._buckets.slice(bucket), total=True)
