"""The reduction of one stage: buckets of the flat vector, parts, sums, and the separate buffer for the result.

Exact parts and sums are packed (packing.py), which takes fewer bytes for the same numbers. In mode "fp32" they are raw
little-endian numbers, whose size follows from the bucket. totals.py defines the numbers of the reduced vector.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.compute import device_packing, packing
from swarm.compute.body import FrameError
from swarm.compute.device_packing import DevicePacking, Order
from swarm.compute.digest import Hashing, reduced_digest
from swarm.compute.norm import kernel, squared_norm
from swarm.compute.sketching import sketch_of
from swarm.compute.sums import Accumulator, Layout
from swarm.compute.totals import combine, in_floats, loss_of, reduced_dtype, unit_of
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import Assembled, EncodePart, SumBucket
from swarm.protocol.sketch import added, seal_of, written

BUCKET_ELEMENTS = 1 << 18
"""Elements of a bucket; a multiple of packing.BLOCK."""
_MOST_UNITS = 2.0**52
"""The largest magnitude of a float that is rounded to a whole number for a sketch."""

assert sys.byteorder == "little", "parts, sums and digests are defined over little-endian bytes"


def largest_exact(sums: SumSection) -> int:
    """The largest size in bytes of a part or sum in a run without compression."""
    return packing.largest(BUCKET_ELEMENTS) if sums.mode == "exact" else 4 * BUCKET_ELEMENTS


class Buckets:
    """The division of a flat vector of `length` elements. It follows from the manifest and the stage.

    Parameters that another stage holds too have their own buckets, the first `shared`, which are the same in both
    stages.
    """

    first_round = 0
    """The number of buckets that are reduced before the others can be computed."""

    def __init__(self, layout: Layout, sums: SumSection, *, reduced: bool = False) -> None:
        """`reduced`: divide the reduced vector, uncompressed, instead of the vector that replicas exchange."""
        ends = (layout.shared_length, layout.length)
        self._starts = [start for part in pairwise((0, *ends)) for start in range(*part, BUCKET_ELEMENTS)] or [0]
        self.shared = -(-layout.shared_length // BUCKET_ELEMENTS)
        self.count = len(self._starts)
        self._ends = [*self._starts[1:], layout.length]
        self._grid_bits = sums.grid_bits
        self._limit = 2.0 ** (53 - sums.grid_bits) if sums.mode == "exact" else math.inf
        self._packed = sums.mode == "exact" and not (reduced and sums.compresses)
        self._raw = np.float64 if sums.mode == "exact" else np.float32

    def slice(self, bucket: int) -> slice:
        if not 0 <= bucket < self.count:
            raise self._unknown(bucket)
        return slice(self._starts[bucket], self._ends[bucket])

    @property
    def slices(self) -> list[builtins.slice]:
        return [self.slice(bucket) for bucket in range(self.count)]

    def _unknown(self, bucket: int) -> FrameError:
        return FrameError(f"bucket {bucket} does not exist: the stage has {self.count}")

    def _numbers(self, bucket: int) -> int:
        where = self.slice(bucket)
        return int(where.stop - where.start)

    def check(self, bucket: int, payload: object) -> None:
        """Raise FrameError unless `payload` is a part or sum of `bucket` that honest peers could have made.

        Larger numbers would make the honest reducer fail. NaN and infinity are allowed: all peers must see that a run
        diverged, and the decision then skips the step.
        """
        count = self._numbers(bucket)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} of type {type(payload).__name__}, expected bytes")
        if not self._packed:
            if (size := memoryview(payload).nbytes) != (expected := self._raw().itemsize * count):
                raise FrameError(f"bucket {bucket} of {size} bytes, expected {expected}")
            return
        try:
            packing.check(payload, count, self._grid_bits)
        except packing.PackingError as error:
            raise FrameError(f"bucket {bucket} of {error}") from None

    def read(self, bucket: int, payload: object, out: Tensor | None = None) -> Tensor:
        """Decode the numbers of a bucket on the CPU, into `out` or a new tensor. Raises FrameError; `out` is then
        undefined.
        """
        if not self._packed:
            self.check(bucket, payload)
            numbers = torch.from_numpy(np.frombuffer(payload, dtype=self._raw).copy())  # type: ignore[call-overload]
            return numbers if out is None else out.copy_(numbers)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} of type {type(payload).__name__}, expected bytes")
        count = self._numbers(bucket)
        numbers = torch.empty(count, dtype=torch.int64) if out is None else out
        try:
            packing.unpack(payload, count, self._grid_bits, numbers.numpy())
        except packing.PackingError as error:
            raise FrameError(f"bucket {bucket} of {error}") from None
        return numbers

    def write(self, numbers: Tensor) -> memoryview:
        """Encode a bucket's numbers, which must be on the CPU. The result is a view of them unless the run packs."""
        if self._packed:
            return memoryview(packing.pack(numbers.numpy(), self._grid_bits)).toreadonly()
        return numbers.numpy().data.cast("B").toreadonly()


class Reduction:
    """Runs attempts one after another. On a device with its own memory, the reduced vector exists only from the first
    sum of an attempt to its step.
    """

    def __init__(self, accumulator: Accumulator, buckets: Buckets, sums: SumSection) -> None:
        self._accumulator = accumulator
        self._buckets = buckets
        self._whole = Buckets(accumulator.layout, sums, reduced=True)
        """The buckets of the reduced vector, as it is sent uncompressed."""
        self._sums = sums
        self._dtype = reduced_dtype(sums)
        packed = sums.mode == "exact" and sums.averaging == "none"
        found = device_packing.kernels(accumulator.device) if packed else None
        self._device = (
            None if found is None else DevicePacking(found, accumulator.numbers, buckets.slices, sums.grid_bits)
        )
        """None: the CPU reduces, whatever device holds the sums."""
        self.coming: Callable[[], Sequence[EncodePart | SumBucket]] = tuple
        """The known orders that follow the current one. A device begins with them at once."""
        where = "cpu" if self._device is None else accumulator.device
        kernel(torch.device(where))  # compiled now, not in the first step
        self._where = torch.device(where)
        self.gives_back = self._where.type != "cpu"
        """True if the memory is freed for graphs between reductions. On a CPU, freeing it would fragment the heap,
        which would grow.
        """
        self._held = None if self.gives_back else self._vector()
        """The reduced vector, while it exists."""
        self._digest: str | None = None
        """Digest of the reduced vector, once it is complete."""
        self._attempt: Attempt | None = None
        self._stored: set[int] = set()
        self._summed: set[int] = set()
        """Buckets that were summed here and are already in the reduced vector, but whose store is not ordered yet."""

    def part(self, action: EncodePart) -> memoryview:
        """This peer's sums of a bucket. In mode "fp32" on the CPU: a view of the accumulator, valid while the attempt
        lives.
        """
        if self._device is not None:
            return self._device.part(
                self._key(action.attempt),
                action.bucket,
                lambda: (
                    each.bucket
                    for each in self.coming()
                    if isinstance(each, EncodePart) and each.attempt == action.attempt
                ),
            )
        return self._buckets.write(self._accumulator.numbers(self._buckets.slice(action.bucket)).cpu())

    def sum(self, action: SumBucket) -> memoryview:
        """This peer's sums plus the others' parts, in the given order. Empty without others, since then nobody
        receives it.

        Raises FrameError, SumOverflow.
        """
        where = self._buckets.slice(action.bucket)
        if self._device is not None and action.parts:
            return self._sum_on_device(action)
        own = self._accumulator.numbers(where).to(self._where)
        self._take(action.attempt, action.bucket)
        if not action.parts:
            self._reduced[where] = self._own(own)
            self._summed.add(action.bucket)
            return memoryview(b"")
        parts = (self._buckets.read(action.bucket, part) for part in action.parts)  # each is decoded when it is added
        total = combine(own, parts, self._sums, out=self._reduced[where])
        self._summed.add(action.bucket)
        # in mode "fp32" a view is written, and the next attempt may change it while it is still being sent
        return self._buckets.write(total if self._accumulator.exact else total.clone())

    def _sum_on_device(self, action: SumBucket) -> memoryview:
        """Sum a bucket on the device, together with the coming orders whose parts are usable. Errors in the others are
        reported in their turn.
        """
        assert self._device is not None
        key, order = self._key(action.attempt), (action.bucket, action.parts)
        if not self._device.is_begun(key, order):  # type: ignore[arg-type]
            self._checked(action)
        self._take(action.attempt, action.bucket)

        def coming() -> Iterator[Order]:
            for each in self.coming():
                if isinstance(each, SumBucket) and each.attempt == action.attempt and each.parts:
                    with contextlib.suppress(FrameError):
                        yield self._checked(each)

        payload = self._device.total(key, order, coming, self._reduced)  # type: ignore[arg-type]
        self._summed.add(action.bucket)
        return payload

    def _checked(self, action: SumBucket) -> Order:
        """Check the parts of an order. Raises FrameError."""
        for part in action.parts:
            self._buckets.check(action.bucket, part)
        return action.bucket, action.parts  # type: ignore[return-value]

    def _key(self, attempt: Attempt) -> object:
        """A key that changes when this peer's sums may have changed."""
        return attempt, self._accumulator.revision

    def store(self, attempt: Attempt, bucket: int, payload: object) -> None:
        """Store the sum of a bucket in the reduced vector. Raises FrameError."""
        if attempt == self._attempt and bucket in self._summed:
            self._summed.discard(bucket)
        elif self._device is not None:
            self._buckets.check(bucket, payload)
            self._take(attempt, bucket)
            self._device.read(bucket, payload, self._reduced)  # type: ignore[arg-type]
        else:
            values = self._read(bucket, payload)
            self._take(attempt, bucket)
            self._reduced[self._buckets.slice(bucket)] = values
        self._stored.add(bucket)

    def assemble(self, attempt: Attempt) -> Assembled:
        """Complete the reduced vector. Raises ValueError if a bucket is missing."""
        reduced = self.reduced(attempt)
        hashing = None if self._digest else Hashing(reduced)
        squared = squared_norm(reduced, self._accumulator.layout, self.unit)
        loss = loss_of(reduced, self._sums) if self._accumulator.layout.with_loss else 0.0
        finite = math.isfinite(squared) and math.isfinite(loss)
        shared = self._accumulator.layout.shared_length
        of_shared = reduced_digest(reduced[:shared]) if shared else ""
        self._digest = self._digest or (hashing.result() if hashing is not None else None)
        return Assembled(attempt, self.digest(attempt), squared, loss, finite, of_shared)

    def sketched(self, done: Assembled, *, outlined: bool) -> Assembled:
        """Return `done` with sketches of this peer's sums and of the total. The accumulator must hold the same
        microbatches.

        The signs follow from the digest, so no peer knows them before all have contributed their sums.
        `outlined`: also add sketches whose signs stay the same when the step is computed again.
        """
        if not done.finite:
            return done
        reduced, attempt = self.reduced(done.attempt), done.attempt
        layout, of_step = self._accumulator.layout, (f"step {attempt.pass_id.step}",) if outlined else ()
        wholes = [(slice(layout.shared_length, layout.length - layout.with_loss), f"sums {done.digest}")]
        if layout.shared:  # whose digest is the same in the other stage
            wholes.append((slice(0, layout.shared_length), f"sums {done.shared}"))
        own, every, outlines = [], [], []
        for where, seed in wholes:
            own += sketch_of(self._own_units, where, self._accumulator.device, seed)
            found = sketch_of(lambda part: self._in_units(reduced[part]), where, reduced.device, seed, *of_step)
            every.append(found[0])
            outlines += found[1:]
        adds_up = self._accumulator.exact and self._sums.averaging == "none"  # and nothing is rounded on the way
        return replace(
            done,
            sketch=b"".join(map(written, own)),
            seal=seal_of(every) if adds_up else 0,
            outline=written(added(outlines)) if outlined else b"",
        )

    def digest(self, attempt: Attempt) -> str:
        """Digest of the reduced vector, which is read once. Raises ValueError if the vector is not here."""
        reduced = self.reduced(attempt)
        if self._digest is None:
            self._digest = reduced_digest(reduced)
        return self._digest

    def reduced(self, attempt: Attempt) -> Tensor:
        """The complete reduced vector of `attempt`. Raises ValueError if it is not here."""
        missing = self._buckets.count - len(self._stored)
        if attempt != self._attempt or missing:
            raise ValueError(f"the reduced sums of attempt {attempt} are not here: holding {self._attempt}, {missing=}")
        if self._device is not None:
            self._device.settle(self._reduced)
        return self._reduced

    @property
    def unit(self) -> float:
        """The value that a 1 in the reduced vector stands for."""
        return unit_of(self._dtype, self._sums)

    def written(self, attempt: Attempt) -> Iterator[Buffer]:
        """The whole reduced vector, uncompressed, bucket by bucket, for peers that catch up."""
        reduced = self.reduced(attempt)
        if self._device is not None:
            return self._device.written(reduced, self._whole.slices)
        return (self._whole.write(reduced[self._whole.slice(b)]) for b in range(self._whole.count))

    def restore(self, attempt: Attempt, written: Sequence[object]) -> None:
        """Store the buckets that another peer's `written` produced. Raises FrameError."""
        if len(written) != self._whole.count:
            raise FrameError(f"{len(written)} buckets, the stage has {self._whole.count}")
        self._turn_to(None)
        for bucket, payload in enumerate(written):
            if self._device is None:
                self._reduced[self._whole.slice(bucket)] = self._whole.read(bucket, payload)
                continue
            self._whole.check(bucket, payload)
            self._device.read(bucket, payload, self._reduced)  # type: ignore[arg-type]
        self._attempt = attempt
        self._digest = None
        self._stored = set(range(self._buckets.count))

    def cancel(self, attempt: Attempt) -> None:
        if attempt == self._attempt:
            self._turn_to(None)

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        """The decision of `attempt` is applied, so its sums are dropped."""
        self._turn_to(None)

    def forget(self) -> None:
        """Drop everything of earlier steps, since another state is loaded."""

    def _take(self, attempt: Attempt, bucket: int) -> None:
        """Register a new bucket of `attempt`. If it is already here, a new donor sends all buckets, this one first."""
        if bucket in self._stored:
            self._turn_to(None)
        self._turn_to(attempt)

    def _turn_to(self, attempt: Attempt | None) -> None:
        """Assign the reduced vector to this attempt; None: to no attempt."""
        self._digest = None
        if attempt != self._attempt:
            if self._device is not None:
                self._device.drop(parts=attempt is None)
            if attempt is None and self.gives_back:
                self._held = None
            self._attempt = attempt
            self._stored.clear()
            self._summed.clear()

    @property
    def _reduced(self) -> Tensor:
        """The reduced vector. Buckets that are not stored yet hold arbitrary values."""
        if self._held is None:
            self._held = self._vector()
        return self._held

    def _vector(self) -> Tensor:
        return torch.empty(self._accumulator.layout.length, dtype=self._dtype, device=self._where)

    def _own(self, numbers: Tensor) -> Tensor:
        """This peer's sums in the form in which a roster of one reduces them."""
        total = combine(numbers, (), self._sums)
        return in_floats(total, self._sums) if self._sums.compresses else total

    def _own_units(self, where: slice) -> Tensor:
        return self._in_units(self._accumulator.numbers(where))

    def _in_units(self, numbers: Tensor) -> Tensor:
        """Whole numbers in units of the grid, from which sketches are computed; for floats, rounded."""
        if not numbers.is_floating_point():
            return numbers
        scaled = numbers.to(torch.float64).mul_(2.0**self._sums.grid_bits)
        return scaled.nan_to_num_().clamp_(-_MOST_UNITS, _MOST_UNITS).round_().to(torch.int64)

    def _read(self, bucket: int, payload: object) -> Tensor:
        return self._buckets.read(bucket, payload)
