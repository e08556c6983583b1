"""The reduce of one stage: buckets of the flat vector, parts, sums, and the separate buffer they end in.

Exact parts and sums are packed (packing.py): fewer bytes, the same numbers. With mode "fp32" they are raw little-endian
numbers, whose size follows from the bucket.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from swarm.compute import packing
from swarm.compute.body import FrameError
from swarm.compute.digest import reduced_digest
from swarm.compute.sums import Accumulator, Layout, combine, squared_norm
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import Assembled, EncodePart, SumBucket

BUCKET_ELEMENTS = 1 << 18
"""A multiple of packing.BLOCK."""

assert sys.byteorder == "little", "parts, sums and digests are defined over little-endian bytes"


def largest_exact(sums: SumSection) -> int:
    """Bytes of a part or sum at most, where nothing is compressed."""
    return packing.largest(BUCKET_ELEMENTS) if sums.mode == "exact" else 4 * BUCKET_ELEMENTS


class Buckets:
    """How a flat vector of `length` elements is divided; a function of the manifest and the stage.

    What another stage holds too has buckets of its own, the first `shared`, which are the same in both stages.
    """

    first_round = 0
    """So many of the buckets are reduced before the others can be computed."""

    def __init__(self, layout: Layout, sums: SumSection) -> None:
        ends = (layout.shared_length, layout.length)
        self._starts = [start for part in pairwise((0, *ends)) for start in range(*part, BUCKET_ELEMENTS)] or [0]
        self.shared = -(-layout.shared_length // BUCKET_ELEMENTS)
        self.count = len(self._starts)
        self._ends = [*self._starts[1:], layout.length]
        self._exact = sums.mode == "exact"
        self._grid_bits = sums.grid_bits
        self._limit = 2.0 ** (53 - sums.grid_bits) if self._exact else math.inf

    def slice(self, bucket: int) -> slice:
        if not 0 <= bucket < self.count:
            raise self._unknown(bucket)
        return slice(self._starts[bucket], self._ends[bucket])

    def _unknown(self, bucket: int) -> FrameError:
        return FrameError(f"bucket {bucket} does not exist: the stage has {self.count}")

    def _numbers(self, bucket: int) -> int:
        where = self.slice(bucket)
        return int(where.stop - where.start)

    def check(self, bucket: int, payload: object) -> None:
        """Raise FrameError unless `payload` is a part or sum of `bucket` that peers can have summed.

        Larger numbers would make the honest reducer fail. NaN and infinity pass: a diverged run is for all to see, and
        is skipped by decision.
        """
        count = self._numbers(bucket)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} of type {type(payload).__name__}, expected bytes")
        if not self._exact:
            if (size := memoryview(payload).nbytes) != 4 * count:
                raise FrameError(f"bucket {bucket} of {size} bytes, expected {4 * count}")
            return
        try:
            peak = packing.peak(payload, count)
        except packing.PackingError as error:
            raise FrameError(f"bucket {bucket} of {error}") from None
        if math.isfinite(peak) and peak >= self._limit:
            raise FrameError(f"bucket {bucket} reaches {peak:.6g}, the grid carries {self._limit:.6g}")

    def read(self, bucket: int, payload: object) -> Tensor:
        """The numbers of a bucket, freshly allocated. Raises FrameError."""
        self.check(bucket, payload)
        if self._exact:
            return torch.from_numpy(packing.unpack(payload, self._numbers(bucket), self._grid_bits))  # type: ignore[arg-type]
        return torch.from_numpy(np.frombuffer(payload, dtype=np.float32).copy())  # type: ignore[call-overload]

    def write(self, numbers: Tensor) -> memoryview:
        """The payload of a bucket's numbers, which lie on the CPU. With mode "fp32" a view of them."""
        if self._exact:
            return memoryview(packing.pack(numbers.numpy(), self._grid_bits))
        return numbers.numpy().data.cast("B").toreadonly()


class Reduction:
    """Runs attempts one after another. The reduced buffer stays until the next attempt has its first sum."""

    def __init__(self, accumulator: Accumulator, buckets: Buckets, sums: SumSection) -> None:
        self._accumulator = accumulator
        self._buckets = buckets
        self._whole = Buckets(accumulator.layout, sums)
        """Of the reduced vector, as it is sent where nothing is compressed."""
        self._sums = sums
        self._reduced = torch.zeros_like(accumulator.flat, device="cpu")
        self._dtype = self._reduced.dtype
        self._attempt: Attempt | None = None
        self._stored: set[int] = set()
        self._summed: set[int] = set()
        """Buckets that were summed here and lie in the reduced buffer already, but are not ordered to be stored yet."""

    def part(self, action: EncodePart) -> memoryview:
        """Own sums of a bucket. With "fp32" on the CPU a view of the accumulator: valid while the attempt lives."""
        return self._buckets.write(self._accumulator.flat[self._buckets.slice(action.bucket)].cpu())

    def sum(self, action: SumBucket) -> memoryview:
        """Own sums plus the others' parts, in the order given; empty without others, as nobody receives it then.

        Raises FrameError, SumOverflow.
        """
        where = self._buckets.slice(action.bucket)
        parts = [self._buckets.read(action.bucket, part) for part in action.parts]
        self._take(action.attempt, action.bucket)
        total = combine(self._accumulator.flat[where], parts, self._sums, out=self._reduced[where])
        self._summed.add(action.bucket)
        if not parts:
            return memoryview(b"")
        # with "fp32" a view is written, and the next attempt may change it while it is still being sent
        return self._buckets.write(total if self._accumulator.exact else total.clone())

    def store(self, attempt: Attempt, bucket: int, payload: object) -> None:
        """Raises FrameError."""
        if attempt == self._attempt and bucket in self._summed:
            self._summed.discard(bucket)
        else:
            values = self._read(bucket, payload)
            self._take(attempt, bucket)
            self._reduced[self._buckets.slice(bucket)] = values
        self._stored.add(bucket)

    def assemble(self, attempt: Attempt) -> Assembled:
        """Raises ValueError when a bucket is missing."""
        reduced = self.reduced(attempt)
        squared = squared_norm(reduced, self._accumulator.layout)
        loss = reduced[-1].item() if self._accumulator.layout.with_loss else 0.0
        finite = math.isfinite(squared) and math.isfinite(loss)
        shared = self._accumulator.layout.shared_length
        of_shared = reduced_digest(reduced[:shared]) if shared else ""
        return Assembled(attempt, reduced_digest(reduced), squared, loss, finite, of_shared)

    def reduced(self, attempt: Attempt) -> Tensor:
        """The complete reduced vector of `attempt`. Raises ValueError when it is not here."""
        missing = self._buckets.count - len(self._stored)
        if attempt != self._attempt or missing:
            raise ValueError(f"the reduced sums of attempt {attempt} are not here: holding {self._attempt}, {missing=}")
        return self._reduced

    def written(self, attempt: Attempt) -> list[bytes]:
        """All of the reduced vector, uncompressed, for those who catch up."""
        reduced = self.reduced(attempt)
        return [bytes(self._whole.write(reduced[self._whole.slice(b)])) for b in range(self._whole.count)]

    def restore(self, attempt: Attempt, written: Sequence[object]) -> None:
        """Take over what another peer's `written` gave. Raises FrameError."""
        if len(written) != self._whole.count:
            raise FrameError(f"{len(written)} buckets, the stage has {self._whole.count}")
        self._turn_to(None)
        for bucket, payload in enumerate(written):
            self._reduced[self._whole.slice(bucket)] = self._whole.read(bucket, payload)
        self._attempt = attempt
        self._stored = set(range(self._buckets.count))

    def cancel(self, attempt: Attempt) -> None:
        if attempt == self._attempt:
            self._turn_to(None)

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        """The decision of `attempt` is applied."""

    def forget(self) -> None:
        """Another state is loaded: nothing of earlier steps counts."""

    def _take(self, attempt: Attempt, bucket: int) -> None:
        """A bucket of `attempt` comes. If it is here already, it is from another donor, as all others will be."""
        if bucket in self._stored:
            self._turn_to(None)
        self._turn_to(attempt)

    def _turn_to(self, attempt: Attempt | None) -> None:
        """What lies in the reduced buffer is of this attempt."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._stored.clear()
            self._summed.clear()

    def _read(self, bucket: int, payload: object) -> Tensor:
        return self._buckets.read(bucket, payload)
