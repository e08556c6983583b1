"""Packs, adds and unpacks a stage's exact sums on their device, so that only packed bytes are copied to the host.

The host requests one bucket after another. Single buckets would leave the device idle most of the time, so up to GROUP
buckets are processed by the same few kernel launches. A requested bucket is processed together with the buckets that
will be requested next, whose results are kept until then. Received sums are collected until there are enough of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.compute import packing
from swarm.compute.grid import NOT_FINITE, SumOverflow, too_large
from swarm.compute.kernels import checked

if TYPE_CHECKING:
    from swarm.compute.fused_packing import Packed

GROUP = 32
"""Largest number of buckets that are processed at once."""


class Kernels(Protocol):
    """The interface of swarm/compute/fused_packing.py."""

    def pack(self, numbers: Tensor, places: Sequence[slice], grid_bits: int) -> Packed: ...

    def unpack(
        self, payloads: Sequence[Buffer], places: Sequence[slice], grid_bits: int, out: Tensor, *, add: bool = False
    ) -> None: ...


@functools.cache
def kernels(device: torch.device) -> Kernels | None:
    """The kernels for `device`, if a test gives the same results as on the CPU. None: use the CPU."""
    return checked("pack and add up sums", device, _fused, lambda found: agree(found, device))


def _fused() -> Kernels:
    from swarm.compute import fused_packing

    return fused_packing


def agree(found: Kernels, device: torch.device) -> bool:
    """Whether packing, reading and adding give the results of packing.py, for every width and non-finite numbers."""
    rng = np.random.default_rng(1)
    widths = np.arange(-1, packing.BLOCK * 2 - 1) % 54
    buckets, places, end = [], [], 3
    for size in (len(widths) * packing.BLOCK, packing.BLOCK * 3 + 5, 1):
        top = np.left_shift(1, widths.repeat(packing.BLOCK)[:size] % 54)
        numbers = rng.integers(-top + 1, top)
        numbers[:: packing.BLOCK * 11] = NOT_FINITE
        buckets.append(numbers)
        places.append(slice(end, end := end + size))
        end += 2
    whole = np.full(end, 7)
    for numbers, where in zip(buckets, places, strict=True):
        whole[where] = numbers
    packed = found.pack(torch.from_numpy(whole).to(device), places, 30)
    payloads = [packing.pack(numbers, 30) for numbers in buckets]
    if any(packed.payload(index) != payload for index, payload in enumerate(payloads)):
        return False
    before = np.where(np.arange(len(whole)) % 7, 5, NOT_FINITE)
    for add in (False, True):
        expected = before.copy()
        for numbers, where in zip(buckets, places, strict=True):
            lost = (numbers == NOT_FINITE) | (before[where] == NOT_FINITE)
            expected[where] = np.where(lost, NOT_FINITE, before[where] + numbers) if add else numbers
        out = torch.from_numpy(before).to(device, copy=True)
        found.unpack(payloads, places, 30, out, add=add)
        if not np.array_equal(out.cpu().numpy(), expected):
            return False
    return packed.peaks == [int(np.abs(each[each != NOT_FINITE]).max(initial=0)) for each in buckets]


Order = tuple[int, Sequence[Buffer]]
"""A bucket to be summed, and the checked parts of the other members."""


class DevicePacking:
    """The packing of one stage. `numbers`: returns a part of its own sums, on the device; `slices`: of all buckets."""

    def __init__(
        self, found: Kernels, numbers: Callable[[slice], Tensor], slices: Sequence[slice], grid_bits: int
    ) -> None:
        self._kernels = found
        self._numbers = numbers
        self._slices = slices
        self._grid_bits = grid_bits
        self._key: object = None
        self._parts: list[_Group] = []
        self._totals: _Group | None = None
        self._aside: list[Order] = []
        """Received sums that are not read yet."""

    def part(self, key: object, bucket: int, coming: Callable[[], Iterable[int]]) -> memoryview:
        """The payload of a bucket of our own sums. key: must change whenever the sums change.

        coming: the buckets that will be requested next; the first of them are packed at the same time.
        """
        self._turn_to(key)
        while self._parts and bucket not in self._parts[0].places:
            del self._parts[0]
        if len(self._parts) < 2:  # the device packs one group while the host waits for the previous one
            wanted = dict.fromkeys((bucket, *coming()))
            wanted = {each: None for each in wanted if all(each not in group.places for group in self._parts)}
            while wanted and len(self._parts) < 2:
                self._parts.append(self._packed(list(wanted)[:GROUP]))
                wanted = dict.fromkeys(list(wanted)[GROUP:])
        return self._parts[0].payload(bucket)

    def is_begun(self, key: object, order: Order) -> bool:
        """Whether a bucket with these parts was already summed together with another one."""
        bucket, parts = order
        return key == self._key and self._totals is not None and self._totals.parts.get(bucket) is parts

    def total(self, key: object, order: Order, coming: Callable[[], Iterable[Order]], out: Tensor) -> memoryview:
        """Add our own sums of a bucket and all its parts into their place in `out`, on the device; returns the payload.

        key, coming: as in `part`. Raises SumOverflow.
        """
        bucket, parts = order
        group = self._totals
        if group is None or not self.is_begun(key, order):
            self._turn_to(key)
            orders = {bucket: parts}
            for other, others in coming():
                orders.setdefault(other, others)
                if len(orders) == GROUP:
                    break
            group = self._totals = self._summed(orders, out)
        payload, peak = group.payload(bucket), group.peak(bucket)
        if peak >= 1 << 53:
            raise SumOverflow(
                too_large("the sum over replicas", peak * 2.0**-self._grid_bits, self._grid_bits, 53, None)
            )
        return payload

    def read(self, bucket: int, payload: Buffer, out: Tensor) -> None:
        """Read a checked payload into its bucket's place in `out`, on the device, now or in `settle`."""
        self._aside.append((bucket, (payload,)))
        if len(self._aside) >= GROUP:
            self.settle(out)

    def settle(self, out: Tensor) -> None:
        """Read the collected payloads."""
        aside, self._aside = self._aside, []
        if aside:
            self._add(dict(aside), out, add=False)

    def drop(self, *, parts: bool = True) -> None:
        """Drop the collected payloads and started sums; with `parts`, also the packed parts of our own sums."""
        self._totals, self._aside = None, []
        if parts:
            self._key, self._parts = None, []

    def written(self, numbers: Tensor, slices: Sequence[slice]) -> Iterator[Buffer]:
        """The payloads of all buckets of a vector on the device, in order."""
        for start in range(0, len(slices), GROUP):
            some = slices[start : start + GROUP]
            packed = self._kernels.pack(numbers, some, self._grid_bits)
            for index in range(len(some)):
                yield packed.payload(index)

    def _turn_to(self, key: object) -> None:
        if key != self._key:
            self._key, self._parts, self._totals = key, [], None

    def _packed(self, buckets: Sequence[int]) -> _Group:
        own = [self._numbers(self._slices[bucket]) for bucket in buckets]
        ends = np.cumsum([0, *map(len, own)]).tolist()
        numbers = own[0].contiguous() if len(own) == 1 else torch.cat(own)
        places = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        return _Group(buckets, self._kernels.pack(numbers, places, self._grid_bits), {})

    def _summed(self, orders: dict[int, Sequence[Buffer]], out: Tensor) -> _Group:
        for bucket in orders:
            out[self._slices[bucket]] = self._numbers(self._slices[bucket])
        for place in range(max(map(len, orders.values()))):
            self._add({bucket: parts[place : place + 1] for bucket, parts in orders.items() if place < len(parts)}, out)
        packed = self._kernels.pack(out, [self._slices[bucket] for bucket in orders], self._grid_bits)
        return _Group(tuple(orders), packed, orders)

    def _add(self, payloads: dict[int, Sequence[Buffer]], out: Tensor, *, add: bool = True) -> None:
        """Read the payloads, exactly one for each bucket, and add them to `out`; `add` False: overwrite `out`."""
        given = [payload for (payload,) in payloads.values()]
        self._kernels.unpack(given, [self._slices[bucket] for bucket in payloads], self._grid_bits, out, add=add)


class _Group:
    """A group of buckets that are packed together."""

    def __init__(self, buckets: Sequence[int], packed: Packed, parts: dict[int, Sequence[Buffer]]) -> None:
        self.places = {bucket: place for place, bucket in enumerate(buckets)}
        self.parts = parts
        """The parts that were added to each bucket."""
        self._packed = packed

    def payload(self, bucket: int) -> memoryview:
        return self._packed.payload(self.places[bucket])

    def peak(self, bucket: int) -> int:
        """Largest magnitude of a bucket; call it after `payload`."""
        return self._packed.peaks[self.places[bucket]]
