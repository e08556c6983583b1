"""The packed bytes of packing.py, written and read by Triton kernels on a CUDA device: the same bytes.

Many buckets are packed, or read, by the same few launches. The blocks of each bucket are sorted by width. A group is
all blocks of one width in one bucket: its tables say how many they are (`alike`), which is the first of them in that
order (`first`), and the place of their first byte (`start`). With these each column finds its eight numbers and its
bytes by itself (packing_kernels.py).

Between buckets there are gaps, so that what follows the widths is aligned: whole words are read and written.

Importing this needs Triton. `packing.check` must have passed what `unpack` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from swarm.buffer import Buffer
from swarm.compute.host_copy import HostCopy, pinned, to_device
from swarm.compute.packing import BLOCK
from swarm.compute.packing_kernels import measure, pack_columns, unpack_columns

_RAW = 64
_WIDTHS = _RAW + 1
_ALIGNED = 16
_COLUMNS = 128
"""Columns that one program packs, or reads: one for each thread of it."""
_BLOCKS = 16
"""Blocks that one program measures."""


class Packed:
    """The payloads of some buckets, which are on their way to the host."""

    def __init__(self, everything: Tensor, told: Tensor) -> None:
        """everything: their bytes, and room after them. told: (3, buckets) where each begins and ends, its peak."""
        self._everything: Tensor | None = everything
        self._told = HostCopy(told)
        self._bytes: HostCopy | None = None
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.peaks: list[int] = []
        """Largest magnitude of each bucket's finite numbers, once `begin` was called."""

    def begin(self) -> None:
        """Begin the copy of as many bytes as there are, which is known once they are packed."""
        if self._bytes is None:
            assert self._everything is not None
            self._starts, self._ends, self.peaks = self._told.wait().tolist()
            self._bytes = HostCopy(self._everything[: self._ends[-1]])
            self._everything = None

    def payload(self, index: int) -> memoryview:
        """Of the bucket at that place among those given. Waits for the copy."""
        self.begin()
        assert self._bytes is not None
        return self._bytes.wait().numpy().data[self._starts[index] : self._ends[index]].toreadonly()


@torch.no_grad()
def pack(numbers: Tensor, places: Sequence[slice], grid_bits: int) -> Packed:
    """numbers: (count,) int64 on a device, in units of the grid. places: of buckets in it. Starts kernels only."""
    device = numbers.device
    known = _known(tuple(each.stop - each.start for each in places), device)
    total = len(known.buckets)
    where = _placed(places, known, device)
    widths = torch.empty(total, dtype=torch.int64, device=device)
    counted = torch.zeros(len(places) * (_WIDTHS + 1), dtype=torch.int64, device=device)
    alike, peaks = counted[: len(places) * _WIDTHS], counted[len(places) * _WIDTHS :]
    if total:
        with torch.cuda.device_of(numbers):
            grid = (triton.cdiv(total, _BLOCKS),)
            measure[grid](numbers, widths, alike, peaks, known.buckets, where, total, len(places), BLOCKS=_BLOCKS)
    first, spent, of_bucket = _sizes(alike, known)
    data = (aligned := _aligned(of_bucket)).cumsum(0) - aligned + known.headers
    start = spent.cumsum(0) - spent + _by_group(data - of_bucket.cumsum(0) + of_bucket)
    group, order = torch.sort(known.buckets * _WIDTHS + widths, stable=True)

    room = total * 8 * BLOCK + known.room
    everything = torch.empty(room, dtype=torch.uint8, device=device)
    if total:
        everything[data[known.buckets] + known.before_data] = widths.to(torch.uint8)
        with torch.cuda.device_of(numbers):
            grid = (triton.cdiv(8 * total, _COLUMNS),)
            tables = torch.stack((alike, first, start))
            pack_columns[grid](
                numbers, everything, everything.view(torch.int64), order, group, tables,
                known.buckets, where, total, len(alike), len(places), 2.0**-grid_bits, COLUMNS=_COLUMNS,
            )  # fmt: skip
    return Packed(everything, torch.stack((data - known.blocks, data + of_bucket, peaks)))


@torch.no_grad()
def unpack(
    payloads: Sequence[Buffer], places: Sequence[slice], grid_bits: int, out: Tensor, *, add: bool = False
) -> None:
    """Each payload to its place in `out`, (count,) int64 on a device, or added there: NOT_FINITE stays.

    Starts kernels only.
    """
    device = out.device
    known = _known(tuple(each.stop - each.start for each in places), device)
    total = len(known.buckets)
    if not total:
        return
    sizes = np.array([memoryview(payload).nbytes for payload in payloads])
    of_data = sizes - known.blocks_here
    aligned = _aligned(of_data)
    data = np.cumsum(aligned) - aligned + known.headers_here
    host = pinned((int(data[-1] + aligned[-1]),), torch.uint8, device)
    here = host.numpy()
    for payload, size, begin in zip(payloads, sizes, data - known.blocks_here, strict=True):
        here[begin : begin + size] = np.frombuffer(payload, dtype=np.uint8)
    everything = host.to(device, non_blocking=True)
    told = to_device(np.stack((data, np.cumsum(of_data) - of_data)), device)

    widths = everything[told[0][known.buckets] + known.before_data]
    group, order = torch.sort(known.buckets * _WIDTHS + widths, stable=True)
    alike = torch.searchsorted(group, known.bounds).diff()
    first, spent, _ = _sizes(alike, known)
    start = spent.cumsum(0) - spent + _by_group(told[0] - told[1])
    tables, where = torch.stack((alike, first, start)), _placed(places, known, device)
    with torch.cuda.device_of(out):
        grid = (triton.cdiv(8 * total, _COLUMNS),)
        unpack_columns[grid](
            everything, everything.view(torch.int64), out, order, group, tables,
            known.buckets, where, total, len(alike), len(places), 2.0**grid_bits, ADD=add, COLUMNS=_COLUMNS,
        )  # fmt: skip


@dataclass(frozen=True)
class _Known:
    """What follows from the buckets' sizes alone: int64."""

    buckets: Tensor
    """(blocks,) which bucket each block is in."""
    before_data: Tensor
    """(blocks,) where its width stands, from the first byte of its bucket's data: below 0."""
    costs: Tensor
    """(groups,) bytes of a block."""
    bounds: Tensor
    """(groups + 1,) the number of each, and one more."""
    blocks: Tensor
    """(buckets,) how many."""
    headers: Tensor
    """(buckets,) bytes of widths with their gaps, up to the end of each bucket's."""
    sizes: Tensor
    """(2, buckets) its numbers, its first block."""
    blocks_here: NDArray[np.int64]
    """`blocks` on the host, as the following."""
    headers_here: NDArray[np.int64]
    room: int
    """Bytes that all widths and gaps take at most."""


@functools.lru_cache(maxsize=16)
def _known(counts: tuple[int, ...], device: torch.device) -> _Known:
    """counts: the buckets' numbers."""
    numbers = np.array(counts, dtype=np.int64)
    blocks = -(-numbers // BLOCK)
    ends, headers = np.cumsum(blocks), np.cumsum(_aligned(blocks))
    buckets = np.repeat(np.arange(len(counts)), blocks)
    return _Known(
        buckets=to_device(buckets, device),
        before_data=to_device(np.arange(len(buckets)) - ends[buckets], device),
        costs=to_device(np.tile(np.arange(_WIDTHS) * (BLOCK // 8), len(counts)), device),
        bounds=to_device(np.arange(_WIDTHS * len(counts) + 1), device),
        blocks=to_device(blocks, device),
        headers=to_device(headers, device),
        sizes=to_device(np.stack((numbers, ends - blocks)), device),
        blocks_here=blocks,
        headers_here=headers,
        room=int(headers[-1]) + _ALIGNED * len(counts),
    )


def _placed(places: Sequence[slice], known: _Known, device: torch.device) -> Tensor:
    """(3, buckets): where each begins, its numbers, its first block."""
    starts = to_device(np.array([each.start for each in places], dtype=np.int64), device)
    return torch.cat((starts.unsqueeze(0), known.sizes))


def _sizes(alike: Tensor, known: _Known) -> tuple[Tensor, Tensor, Tensor]:
    """Of groups of so many blocks: the first block of each, its bytes, and those of all data of a bucket."""
    spent = alike * known.costs
    return alike.cumsum(0) - alike, spent, spent.view(-1, _WIDTHS).sum(1)


def _by_group(of_bucket: Tensor) -> Tensor:
    return of_bucket.unsqueeze(1).expand(-1, _WIDTHS).reshape(-1)


_Sizes = TypeVar("_Sizes", Tensor, "NDArray[np.int64]")


def _aligned(sizes: _Sizes) -> _Sizes:
    """Rounded up."""
    return (sizes + (_ALIGNED - 1)) // _ALIGNED * _ALIGNED
