"""The reduction of one stage with a codec, with error feedback at sender and reducer, and an equal result for all.

    each member sends its share of a bucket      p = C(g + e)         e ← g + e − p     (the reducer too)
    the bucket's reducer sends                   q = C(Σ p + r)       r ← Σ p + r − q
    all members, with the reducer, use q

g: the exact sum over the member's microbatches. e, r: residuals (residuals.py). C: encoding and decoding with the
codec. Σ is computed in fp64 in the order of the roster, so that the result depends only on which member has added which
microbatches (Tang et al., DoubleSqueeze, arXiv 1905.05957; 1-bit Adam, arXiv 2102.02888). A roster of one member sends
and compresses nothing.

    payload: kind u8 | the loss, fp64, at the end of the last stage | a frame of the codec, unless not finite

The loss is not compressed. A share with NaN or infinity has no frame; the sum is then NaN in all replicas, and the
coordinator decides to skip the step.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm import codecs
from swarm.compute.body import FrameError
from swarm.compute.grid import SumOverflow, peak_of
from swarm.compute.layout import Layout
from swarm.compute.reduction import Buckets, Reduction
from swarm.compute.residuals import Residuals
from swarm.compute.sums import Accumulator
from swarm.compute.totals import in_floats
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import EncodePart, SumBucket

HEAD_BYTES = 9
"""Largest number of bytes of a payload before its frame."""

_LOSS = struct.Struct("<d")


class Coding(enum.IntEnum):
    CODED = 0
    NOT_FINITE = 1


class CodedBuckets(Buckets):
    """The buckets of a stage with compressed payloads."""

    def __init__(self, layout: Layout, sums: SumSection, codec: codecs.Codec) -> None:
        super().__init__(layout, sums)
        self._codec = codec
        self._with_loss = layout.with_loss

    def check(self, bucket: int, payload: object) -> None:
        self.decode(bucket, payload)

    def decode(self, bucket: int, payload: object) -> tuple[Tensor | None, float]:
        """Decode a payload: (values in fp32 without the loss, None if not finite; the loss, or 0).

        Raises FrameError.
        """
        count, loss_bytes = self._numbers(bucket), _LOSS.size * self.ends_in_loss(bucket)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} is of type {type(payload).__name__}, expected bytes")
        view = memoryview(payload).cast("B")
        if len(view) < 1 + loss_bytes:
            raise FrameError(f"bucket {bucket} has {len(view)} bytes, expected at least {1 + loss_bytes}")
        loss = _LOSS.unpack_from(view, 1)[0] if loss_bytes else 0.0
        if math.isfinite(loss) and abs(loss) >= self._limit:
            raise FrameError(f"bucket {bucket} has the loss {loss:.6g}; the limit of the grid is {self._limit:.6g}")
        frame = view[1 + loss_bytes :]
        if view[0] == Coding.NOT_FINITE and not len(frame):
            return None, loss
        if view[0] != Coding.CODED:
            raise FrameError(f"bucket {bucket} is of kind {view[0]} and has a frame of {len(frame)} bytes: not valid")
        try:
            values = self._codec.decode(frame, (count - self.ends_in_loss(bucket),))
        except codecs.CodecError as error:
            raise FrameError(f"bucket {bucket}: {error}") from None
        if len(values) and (peak := peak_of(values)) >= self._limit:
            raise FrameError(f"bucket {bucket} reaches {peak:.6g}; the limit of the grid is {self._limit:.6g}")
        return values, loss

    def encode(
        self, bucket: int, values: Tensor | None, loss: float, residual: Tensor | None
    ) -> tuple[bytes, Tensor | None, Tensor]:
        """Encode a bucket: (payload, its reconstruction, its coding error).

        `values`: fp64 or fp32 without the loss; None: not finite. Raises SumOverflow if a receiver would refuse it.
        """
        tail = _LOSS.pack(loss if math.isfinite(loss) else math.nan) if self.ends_in_loss(bucket) else b""
        wanted = torch.full((self._numbers(bucket) - self.ends_in_loss(bucket),), math.nan)
        if values is not None:
            exact = values.to(torch.float64)
            wanted = (exact if residual is None else exact + residual).to(torch.float32)
        if not bool(torch.isfinite(wanted).all()):
            return bytes((Coding.NOT_FINITE,)) + tail, None, torch.zeros_like(wanted)
        frame = self._codec.encode(wanted)
        crossed = self._codec.decode(frame, wanted.shape)
        if len(crossed) and (peak := peak_of(crossed)) >= self._limit:
            raise SumOverflow(
                f"bucket {bucket} of the averaged gradients reaches {peak:.6g}; the grid's limit is {self._limit:.6g}: "
                "lower sums.grid_bits or the learning rate"
            )
        return b"".join((bytes((Coding.CODED,)), tail, frame)), crossed, wanted - crossed

    def ends_in_loss(self, bucket: int) -> bool:
        return self._with_loss and bucket == self.count - 1


class FeedbackReduction(Reduction):
    """A `Reduction` with lossy compression. The compression error is kept and added in the next step."""

    def __init__(self, accumulator: Accumulator, buckets: Buckets, sums: SumSection) -> None:
        super().__init__(accumulator, buckets, sums)
        self._residuals = Residuals()

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        super().applied(attempt, skipped=skipped)
        self._residuals.applied(attempt, skipped=skipped)

    def cancel(self, attempt: Attempt) -> None:
        super().cancel(attempt)
        self._residuals.cancel(attempt)

    def forget(self) -> None:
        self._residuals.forget()


class CodedReduction(FeedbackReduction):
    """A reduction that compresses each bucket with a codec."""

    def __init__(self, accumulator: Accumulator, sums: SumSection) -> None:
        super().__init__(accumulator, Buckets(accumulator.layout, sums), sums)
        self._coded = CodedBuckets(accumulator.layout, sums, codecs.averaging(sums.averaging))

    def part(self, action: EncodePart) -> memoryview:
        """The payload of our own share of a bucket. Raises SumOverflow; LookupError if a residual is missing."""
        payload, _, _ = self._share(action.attempt, action.bucket, action.carried)
        return memoryview(payload)

    def sum(self, action: SumBucket) -> memoryview:
        """The payload of the sum of a bucket. Raises FrameError, SumOverflow; LookupError if a residual is missing."""
        if not action.parts:
            return super().sum(action)
        bucket = action.bucket
        shares = [self._coded.decode(bucket, part) for part in action.parts]
        _, own, own_loss = self._share(action.attempt, bucket, action.carried)
        shares.insert(action.place, (own, own_loss))
        residual = self._residuals.sum(action.attempt, bucket, action.carried)
        total, loss = added(shares)
        payload, _, lost = self._coded.encode(bucket, total, loss, residual)
        self._residuals.sum_lost(action.attempt, bucket, lost)
        return memoryview(payload)

    def _read(self, bucket: int, payload: object) -> Tensor:
        values, loss = self._coded.decode(bucket, payload)
        where = self._buckets.slice(bucket)
        numbers = torch.full((where.stop - where.start,), math.nan, dtype=self._dtype)
        if self._coded.ends_in_loss(bucket):
            numbers[-1] = loss if math.isfinite(loss) else math.nan
        if values is not None:
            numbers[: len(values)] = values
        return numbers

    def _share(self, attempt: Attempt, bucket: int, carried: bool) -> tuple[bytes, Tensor | None, float]:
        """(payload, its reconstruction, loss) of our own share. Its coding error is a pending residual."""
        values, loss = in_floats(self._accumulator.numbers(self._buckets.slice(bucket)), self._sums).cpu(), 0.0
        if self._coded.ends_in_loss(bucket):
            values, loss = values[:-1], self._accumulator.loss
        residual = self._residuals.share(attempt, bucket, carried)
        payload, crossed, lost = self._coded.encode(bucket, values, loss, residual)
        self._residuals.share_lost(attempt, bucket, lost)
        return payload, crossed, loss


def added(shares: Sequence[tuple[Tensor | None, float]]) -> tuple[Tensor | None, float]:
    """The fp64 sums of the decoded shares and of their losses, added in the given order. None: not finite."""
    loss = sum(each for _, each in shares)
    finite = [values for values, _ in shares if values is not None]
    if len(finite) < len(shares):
        return None, loss
    total = finite[0].to(torch.float64, copy=True)
    for values in finite[1:]:
        total += values
    return total, loss
