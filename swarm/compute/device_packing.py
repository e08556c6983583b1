"""Packs, adds up and unpacks a stage's exact sums on the device that holds them: only packed bytes cross to the host.

The host orders bucket by bucket, and each order alone would leave the device idle most of the time. So own sums are
packed in groups of buckets, and the next group is begun before the bytes of the one asked for are awaited.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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

GROUP = 8
"""Buckets that are packed at once."""


class Kernels(Protocol):
    """As swarm/compute/fused_packing.py."""

    def pack(self, buckets: Sequence[Tensor], grid_bits: int) -> Packed: ...

    def unpack(self, payload: Buffer, count: int, grid_bits: int, out: Tensor, *, add: bool = False) -> None: ...


@functools.cache
def kernels(device: torch.device) -> Kernels | None:
    """Those for `device`, once they have packed and read some numbers as the CPU does. None: the CPU does it all."""
    return checked("pack and add up sums", device, _fused, lambda found: agree(found, device))


def _fused() -> Kernels:
    from swarm.compute import fused_packing

    return fused_packing


def agree(found: Kernels, device: torch.device) -> bool:
    """Whether packed bytes, and numbers read and added, are those of packing.py: every width, and not finite ones."""
    rng = np.random.default_rng(1)
    widths = np.arange(-1, packing.BLOCK * 2 - 1) % 54
    buckets = []
    for size in (len(widths) * packing.BLOCK, packing.BLOCK * 3 + 5, 1):
        top = np.left_shift(1, widths.repeat(packing.BLOCK)[:size] % 54)
        numbers = rng.integers(-top + 1, top)
        numbers[:: packing.BLOCK * 11] = NOT_FINITE
        buckets.append(numbers)
    packed = found.pack([torch.from_numpy(numbers).to(device) for numbers in buckets], 30)
    for index, numbers in enumerate(buckets):
        payload = packing.pack(numbers, 30)
        if packed.payload(index) != payload:
            return False
        before = np.where(np.arange(len(numbers)) % 7, 5, NOT_FINITE)
        lost = (numbers == NOT_FINITE) | (before == NOT_FINITE)
        for add, expected in ((False, numbers), (True, np.where(lost, NOT_FINITE, before + numbers))):
            out = torch.from_numpy(before).to(device, copy=True)
            found.unpack(payload, len(numbers), 30, out, add=add)
            if not np.array_equal(out.cpu().numpy(), expected):
                return False
    return packed.peak == max(int(np.abs(numbers[numbers != NOT_FINITE]).max(initial=0)) for numbers in buckets)


class DevicePacking:
    """Of one stage. `numbers` gives a part of its own sums, on the device."""

    def __init__(self, found: Kernels, numbers: Callable[[slice], Tensor], grid_bits: int) -> None:
        self._kernels = found
        self._numbers = numbers
        self._grid_bits = grid_bits
        self._key: object = None
        self._groups: dict[int, Packed] = {}

    def part(self, key: object, bucket: int, slices: Sequence[slice]) -> memoryview:
        """The payload of a bucket of own sums. slices: of all buckets. key: another one when the sums are others."""
        if key != self._key:
            self._key, self._groups = key, {}
        group = bucket // GROUP
        wanted = [each for each in (group, group + 1) if each * GROUP < len(slices)]
        self._groups = {each: self._groups.get(each) or self._packed(each, slices) for each in wanted}
        return self._groups[group].payload(bucket % GROUP)

    def drop(self) -> None:
        """Give up what is held of own sums."""
        self._key, self._groups = None, {}

    def total(self, own: Tensor, parts: Sequence[Buffer], out: Tensor) -> memoryview:
        """own + parts, in `out` on the device, and packed. The parts are checked. Raises SumOverflow."""
        out.copy_(own)
        for part in parts:
            self._kernels.unpack(part, len(out), self._grid_bits, out, add=True)
        packed = self._kernels.pack([out], self._grid_bits)
        packed.begin()
        if packed.peak >= 1 << 53:
            peak = packed.peak * 2.0**-self._grid_bits
            raise SumOverflow(too_large("the sum over replicas", peak, self._grid_bits, 53, None))
        return packed.payload(0)

    def read(self, payload: Buffer, out: Tensor) -> None:
        """A checked payload into `out`, on the device."""
        self._kernels.unpack(payload, len(out), self._grid_bits, out)

    def written(self, numbers: Tensor, slices: Sequence[slice]) -> list[bytes]:
        """The payloads of a vector on the device, by bucket."""
        found: list[bytes] = []
        for start in range(0, len(slices), GROUP):
            some = slices[start : start + GROUP]
            packed = self._kernels.pack([numbers[where] for where in some], self._grid_bits)
            found += [bytes(packed.payload(index)) for index in range(len(some))]
        return found

    def _packed(self, group: int, slices: Sequence[slice]) -> Packed:
        some = slices[group * GROUP : (group + 1) * GROUP]
        return self._kernels.pack([self._numbers(where) for where in some], self._grid_bits)
