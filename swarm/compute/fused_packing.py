"""Triton kernels that write and read the format of packing.py on a CUDA device, with the same bytes.

The same few launches pack or read many buckets. The blocks of each bucket are sorted by width. A group is the set of
all blocks with one width in one bucket. Tables contain for each group the number of its blocks (`alike`), the first of
them in the sorted order (`first`), and the offset of their first byte (`start`). With these, each column finds its
eight numbers and its bytes independently (packing_kernels.py).

Gaps between buckets align the data after the widths, so that whole words can be read and written.

Importing this module needs Triton. `packing.check` must have accepted the payloads that `unpack` gets.
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
"""Number of columns that one program packs or reads, one for each of its threads."""
_BLOCKS = 16
"""Number of blocks whose width one program determines."""


class Packed:
    """The payloads of some buckets, which are being copied to the host."""

    def __init__(self, everything: Tensor, told: Tensor) -> None:
        """everything: the bytes of all payloads, and unused bytes. told: (3, buckets): start, end and peak of each."""
        self._everything: Tensor | None = everything
        self._told = HostCopy(told)
        self._bytes: HostCopy | None = None
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.peaks: list[int] = []
        """Largest magnitude of each bucket's finite numbers; filled by `begin`."""

    def begin(self) -> None:
        """Start the copy to the host. Waits for the packing, which determines the number of bytes."""
        if self._bytes is None:
            assert self._everything is not None
            self._starts, self._ends, self.peaks = self._told.wait().tolist()
            self._bytes = HostCopy(self._everything[: self._ends[-1]])
            self._everything = None

    def payload(self, index: int) -> memoryview:
        """The payload of the bucket with this index in `places`. Waits for the copy."""
        self.begin()
        assert self._bytes is not None
        return self._bytes.wait().numpy().data[self._starts[index] : self._ends[index]].toreadonly()


@torch.no_grad()
def pack(numbers: Tensor, places: Sequence[slice], grid_bits: int) -> Packed:
    """Pack buckets. numbers: (count,) int64 on a device, in units of the grid; places: the slice of each bucket.

    This only starts kernels, and does not wait for them.
    """
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
    """Read each payload into its place in `out`, (count,) int64 on a device, or add it there; NOT_FINITE stays.

    This only starts kernels, and does not wait for them.
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
    """Tables that follow from the sizes of the buckets alone, int64."""

    buckets: Tensor
    """(blocks,): the bucket of each block."""
    before_data: Tensor
    """(blocks,): offset of each block's width, relative to the first byte of its bucket's data; negative."""
    costs: Tensor
    """(groups,): bytes of one block."""
    bounds: Tensor
    """(groups + 1,): the numbers 0 to groups."""
    blocks: Tensor
    """(buckets,): number of blocks."""
    headers: Tensor
    """(buckets,): cumulative bytes of the widths with their gaps, up to the end of each bucket's widths."""
    sizes: Tensor
    """(2, buckets): number of values, and index of the first block."""
    blocks_here: NDArray[np.int64]
    """`blocks` on the host. The following fields are on the host too."""
    headers_here: NDArray[np.int64]
    room: int
    """Largest number of bytes of all widths and gaps."""


@functools.lru_cache(maxsize=16)
def _known(counts: tuple[int, ...], device: torch.device) -> _Known:
    """The tables of buckets. counts: number of values of each bucket."""
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
    """(3, buckets): the start of each bucket, its number of values, its first block."""
    starts = to_device(np.array([each.start for each in places], dtype=np.int64), device)
    return torch.cat((starts.unsqueeze(0), known.sizes))


def _sizes(alike: Tensor, known: _Known) -> tuple[Tensor, Tensor, Tensor]:
    """For groups with these numbers of blocks: first block of each, bytes of each, bytes of each bucket's data."""
    spent = alike * known.costs
    return alike.cumsum(0) - alike, spent, spent.view(-1, _WIDTHS).sum(1)


def _by_group(of_bucket: Tensor) -> Tensor:
    return of_bucket.unsqueeze(1).expand(-1, _WIDTHS).reshape(-1)


_Sizes = TypeVar("_Sizes", Tensor, "NDArray[np.int64]")


def _aligned(sizes: _Sizes) -> _Sizes:
    """Sizes rounded up to the alignment."""
    return (sizes + (_ALIGNED - 1)) // _ALIGNED * _ALIGNED
