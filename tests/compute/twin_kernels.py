"""What fused_packing.py does, by packing.py on the CPU: the kernels' stand-in where there is no Triton."""

from collections.abc import Sequence

import numpy as np
import torch

from swarm.compute import packing
from swarm.compute.grid import NOT_FINITE


class TwinPacked:
    def __init__(self, buckets: list[np.ndarray], grid_bits: int) -> None:
        self._payloads = [packing.pack(each, grid_bits) for each in buckets]
        self.peaks = [int(np.abs(each[each != NOT_FINITE]).max(initial=0)) for each in buckets]

    def begin(self) -> None:
        pass

    def payload(self, index: int) -> memoryview:
        return memoryview(self._payloads[index]).toreadonly()


class TwinKernels:
    """Counts the buckets of each call."""

    def __init__(self) -> None:
        self.packed: list[int] = []
        self.read: list[int] = []

    def pack(self, numbers: torch.Tensor, places: Sequence[slice], grid_bits: int) -> TwinPacked:
        self.packed.append(len(places))
        return TwinPacked([np.ascontiguousarray(numbers[where].numpy()) for where in places], grid_bits)

    def unpack(self, payloads, places: Sequence[slice], grid_bits: int, out: torch.Tensor, *, add=False) -> None:
        self.read.append(len(places))
        for payload, where in zip(payloads, places, strict=True):
            found = np.empty(where.stop - where.start, np.int64)
            packing.unpack(payload, len(found), grid_bits, found)
            before = out[where].numpy()
            lost = (found == NOT_FINITE) | (before == NOT_FINITE)
            before[...] = np.where(lost, NOT_FINITE, before + found) if add else found
