"""The reduction of one stage: buckets of the flat vector, parts, sums, and the buffer with the reduced vector.

Exact parts and sums are packed without loss (packing.py). With mode "fp32" they are raw little-endian numbers, whose
size follows from the bucket. totals.py defines the numbers in the reduced vector.
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
from swarm.compute.layout import Layout
from swarm.compute.norm import kernel, squared_norm
from swarm.compute.offload import host_vector
from swarm.compute.sketching import sketch_of
from swarm.compute.sums import Accumulator
from swarm.compute.totals import combine, in_floats, loss_of, reduced_dtype, unit_of
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import Assembled, EncodePart, SumBucket
from swarm.protocol.sketch import added, seal_of, written

BUCKET_ELEMENTS = 1 << 18
"""Elements of a bucket; a multiple of packing.BLOCK."""
_MOST_UNITS = 2.0**52
"""Largest magnitude, in units, of a float that is converted to an integer for a sketch."""

assert sys.byteorder == "little", "parts, sums and digests are defined over little-endian bytes"


def largest_exact(sums: SumSection) -> int:
    """Largest size of a part or sum without compression, bytes."""
    return packing.largest(BUCKET_ELEMENTS) if sums.mode == "exact" else 4 * BUCKET_ELEMENTS


class Buckets:
    """The division of a flat vector of `length` elements into buckets; it depends only on the manifest and the stage.

    Parameters that another stage holds too have separate buckets, the first `shared` ones, which are equal in both
    stages.
    """

    first_round = 0
    """Number of buckets that must be reduced before the others can be computed."""

    def __init__(self, layout: Layout, sums: SumSection, *, reduced: bool = False) -> None:
        """`reduced`: buckets of the uncompressed reduced vector, instead of those that replicas exchange."""
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
        return FrameError(f"bucket {bucket} does not exist: the stage has {self.count} buckets")

    def _numbers(self, bucket: int) -> int:
        where = self.slice(bucket)
        return int(where.stop - where.start)

    def check(self, bucket: int, payload: object) -> None:
        """Raise FrameError unless `payload` is a possible part or sum of `bucket`.

        Numbers beyond the limit are refused, because they would make an honest reducer fail. NaN and infinity are
        accepted: all replicas then see that the step is not finite, and the coordinator decides to skip it.
        """
        count = self._numbers(bucket)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} is of type {type(payload).__name__}, expected bytes")
        if not self._packed:
            if (size := memoryview(payload).nbytes) != (expected := self._raw().itemsize * count):
                raise FrameError(f"bucket {bucket} has {size} bytes, expected {expected}")
            return
        try:
            packing.check(payload, count, self._grid_bits)
        except packing.PackingError as error:
            raise FrameError(f"bucket {bucket}: {error}") from None

    def read(self, bucket: int, payload: object, out: Tensor | None = None) -> Tensor:
        """The numbers of a bucket, on the CPU, in `out` or a new tensor. Raises FrameError; `out` is undefined then."""
        if not self._packed:
            self.check(bucket, payload)
            numbers = torch.from_numpy(np.frombuffer(payload, dtype=self._raw).copy())  # type: ignore[call-overload]
            return numbers if out is None else out.copy_(numbers)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise FrameError(f"bucket {bucket} is of type {type(payload).__name__}, expected bytes")
        count = self._numbers(bucket)
        numbers = torch.empty(count, dtype=torch.int64) if out is None else out
        try:
            packing.unpack(payload, count, self._grid_bits, numbers.numpy())
        except packing.PackingError as error:
            raise FrameError(f"bucket {bucket}: {error}") from None
        return numbers

    def write(self, numbers: Tensor) -> memoryview:
        """The payload of a bucket's numbers, which are on the CPU; a view of them if they are not packed."""
        if self._packed:
            return memoryview(packing.pack(numbers.numpy(), self._grid_bits)).toreadonly()
        return numbers.numpy().data.cast("B").toreadonly()


class Reduction:
    """The reduction of one stage, one attempt after another. On a device with its own memory, the reduced vector exists
    only from the first sum of an attempt to its step."""

    def __init__(self, accumulator: Accumulator, buckets: Buckets, sums: SumSection, *, on_host: bool = False) -> None:
        """on_host: the reduced vector is in the host's memory, on whatever device the sums are."""
        self._accumulator = accumulator
        self._on_host = on_host
        self._buckets = buckets
        self._whole = Buckets(accumulator.layout, sums, reduced=True)
        """Buckets of the uncompressed reduced vector."""
        self._sums = sums
        self._dtype = reduced_dtype(sums)
        packed = sums.mode == "exact" and sums.averaging == "none" and not on_host
        found = device_packing.kernels(accumulator.device) if packed else None
        self._device = (
            None if found is None else DevicePacking(found, accumulator.numbers, buckets.slices, sums.grid_bits)
        )
        """Packing on the device; None: the CPU reduces, on whatever device the sums are."""
        self.coming: Callable[[], Sequence[EncodePart | SumBucket]] = tuple
        """Returns the known orders that follow the current one, so that a device can process them at the same time."""
        where = "cpu" if self._device is None else accumulator.device
        kernel(torch.device(where))  # compile the kernel now, not in the first step
        self._where = torch.device(where)
        self.gives_back = self._where.type != "cpu"
        """Whether the reduced vector is freed between reductions, to give its memory to graphs.

        Not on a CPU, where freeing it would fragment the heap, which would then grow.
        """
        self._held = None if self.gives_back else self._vector()
        """The reduced vector; None while it is freed."""
        self._digest: str | None = None
        """Digest of the reduced vector; None until it is complete and the digest is computed."""
        self._attempt: Attempt | None = None
        self._stored: set[int] = set()
        self._summed: set[int] = set()
        """Buckets that this peer has summed into the reduced vector, and for which no `store` has come yet."""

    def part(self, action: EncodePart) -> memoryview:
        """The payload of our own sums of a bucket.

        With "fp32" on the CPU, it is a view of the accumulator, which is valid until the attempt ends.
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
        """The payload of our own sums plus the others' parts, in the given order; empty if there are no others.

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
        parts = (self._buckets.read(action.bucket, part) for part in action.parts)  # read lazily, one at a time
        total = combine(own, parts, self._sums, out=self._reduced[where])
        self._summed.add(action.bucket)
        # with "fp32" the payload is a view, which the next attempt could change while it is being sent
        return self._buckets.write(total if self._accumulator.exact else total.clone())

    def _sum_on_device(self, action: SumBucket) -> memoryview:
        """Sum a bucket, and at the same time coming buckets with valid parts. Errors of the others are raised later,
        when they are the current order.
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
        """The order of a sum, after checking all its parts. Raises FrameError."""
        for part in action.parts:
            self._buckets.check(action.bucket, part)
        return action.bucket, action.parts  # type: ignore[return-value]

    def _key(self, attempt: Attempt) -> object:
        """A value that changes whenever our own sums may have changed."""
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
        """Complete the reduced vector: its digest, norm and loss. Raises ValueError if a bucket is missing."""
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
        """Add sketches of our own sums and of the total to `done`.

        The accumulator must still have the same microbatches. The signs follow from the digest, so no peer can know
        them before all have sent their sums. outlined: add sketches with signs that are the same when the step is
        computed again.
        """
        if not done.finite:
            return done
        reduced, attempt = self.reduced(done.attempt), done.attempt
        layout, of_step = self._accumulator.layout, (f"step {attempt.pass_id.step}",) if outlined else ()
        wholes = [(slice(layout.shared_length, layout.length - layout.with_loss), f"sums {done.digest}")]
        if layout.shared:  # the other stage has the same digest of the shared part
            wholes.append((slice(0, layout.shared_length), f"sums {done.shared}"))
        own, every, outlines = [], [], []
        for where, seed in wholes:
            own += sketch_of(self._own_units, where, self._accumulator.device, seed)
            found = sketch_of(lambda part: self._in_units(reduced[part]), where, reduced.device, seed, *of_step)
            every.append(found[0])
            outlines += found[1:]
        adds_up = self._accumulator.exact and self._sums.averaging == "none"  # then nothing is rounded
        return replace(
            done,
            sketch=b"".join(map(written, own)),
            seal=seal_of(every) if adds_up else 0,
            outline=written(added(outlines)) if outlined else b"",
        )

    def digest(self, attempt: Attempt) -> str:
        """The digest of the reduced vector. Reads the vector once. Raises ValueError if it is not available."""
        reduced = self.reduced(attempt)
        if self._digest is None:
            self._digest = reduced_digest(reduced)
        return self._digest

    def reduced(self, attempt: Attempt) -> Tensor:
        """The complete reduced vector of `attempt`. Raises ValueError if it is not available."""
        missing = self._buckets.count - len(self._stored)
        if attempt != self._attempt or missing:
            raise ValueError(f"no reduced sums of attempt {attempt}: those of {self._attempt} are here, {missing=}")
        if self._device is not None:
            self._device.settle(self._reduced)
        return self._reduced

    @property
    def unit(self) -> float:
        """The value that a 1 in the reduced vector stands for."""
        return unit_of(self._dtype, self._sums)

    def written(self, attempt: Attempt) -> Iterator[Buffer]:
        """The payloads of the whole uncompressed reduced vector, for peers that catch up."""
        reduced = self.reduced(attempt)
        if self._device is not None:
            return self._device.written(reduced, self._whole.slices)
        return (self._whole.write(reduced[self._whole.slice(b)]) for b in range(self._whole.count))

    def restore(self, attempt: Attempt, written: Sequence[object]) -> None:
        """Load the payloads from another peer's `written`. Raises FrameError."""
        if len(written) != self._whole.count:
            raise FrameError(f"the sums have {len(written)} buckets, but the stage has {self._whole.count}")
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
        """Call after the decision of `attempt` is applied: its sums are dropped."""
        self._turn_to(None)

    def forget(self) -> None:
        """Call after another state is loaded: drop everything of earlier steps."""

    def _take(self, attempt: Attempt, bucket: int) -> None:
        """Prepare for a bucket of `attempt`.

        If it was stored before, another donor sends all buckets again: start anew.
        """
        if bucket in self._stored:
            self._turn_to(None)
        self._turn_to(attempt)

    def _turn_to(self, attempt: Attempt | None) -> None:
        """Set the attempt whose sums are in the reduced vector; None: there are none."""
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
        """The reduced vector, allocated if needed. Buckets that are not stored yet have undefined values."""
        if self._held is None:
            self._held = self._vector()
        return self._held

    def _vector(self) -> Tensor:
        length = self._accumulator.layout.length
        if self._on_host:
            return host_vector(length, self._dtype, self._accumulator.device)
        return torch.empty(length, dtype=self._dtype, device=self._where)

    def _own(self, numbers: Tensor) -> Tensor:
        """Our own sums in the form in which a roster of one reduces them."""
        total = combine(numbers, (), self._sums)
        return in_floats(total, self._sums) if self._sums.compresses else total

    def _own_units(self, where: slice) -> Tensor:
        return self._in_units(self._accumulator.numbers(where))

    def _in_units(self, numbers: Tensor) -> Tensor:
        """Integers in units of the grid, for sketches; floats are rounded."""
        if not numbers.is_floating_point():
            return numbers
        scaled = numbers.to(torch.float64).mul_(2.0**self._sums.grid_bits)
        return scaled.nan_to_num_().clamp_(-_MOST_UNITS, _MOST_UNITS).round_().to(torch.int64)

    def _read(self, bucket: int, payload: object) -> Tensor:
        return self._buckets.read(bucket, payload)
