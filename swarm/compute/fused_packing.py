"""The packed bytes of packing.py, written and read by Triton kernels on a CUDA device: the same bytes.

A bucket's blocks are sorted by width. Its tables say, for each block in that order: where it lies, its width, how many
blocks have that width (`alike`), which is the first of them (`first`), and the place of their first byte (`start`).
With these each column finds its eight numbers and its bytes by itself.

Importing this needs Triton. `packing.check` must have passed what `unpack` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from swarm.buffer import Buffer
from swarm.compute.host_copy import HostCopy, to_device
from swarm.compute.packing import BLOCK

_RAW = 64
_COLUMNS = 128
"""Columns that one program packs."""
_BLOCKS = 16
"""Blocks that one program measures, or reads."""


class Packed:
    """The payloads of some buckets, which are on their way to the host."""

    def __init__(self, everything: Tensor, ends: Tensor, peak: Tensor) -> None:
        """everything: their bytes, and room after them. ends: (buckets,), where each ends. peak: (), of all numbers."""
        self._everything: Tensor | None = everything
        self._told = HostCopy(torch.cat((ends, peak.reshape(1))))
        self._bytes: HostCopy | None = None
        self._ends: list[int] = []
        self.peak = 0
        """Largest magnitude of the finite numbers, once `begin` was called."""

    def begin(self) -> None:
        """Begin the copy of as many bytes as there are, which is known once they are packed."""
        if self._bytes is None:
            assert self._everything is not None
            *self._ends, self.peak = self._told.wait().tolist()
            self._bytes = HostCopy(self._everything[: self._ends[-1]])
            self._everything = None

    def payload(self, index: int) -> memoryview:
        """Of the bucket at that place among those given. Waits for the copy."""
        self.begin()
        assert self._bytes is not None
        start = self._ends[index - 1] if index else 0
        return self._bytes.wait().numpy().data[start : self._ends[index]].toreadonly()


@torch.no_grad()
def pack(buckets: Sequence[Tensor], grid_bits: int) -> Packed:
    """buckets: (count,) int64 each, in units of the grid, on one device. Starts kernels only."""
    device = buckets[0].device
    sizes = [-(-len(each) // BLOCK) for each in buckets]
    padded = [torch.nn.functional.pad(each, (0, -len(each) % BLOCK)) if len(each) % BLOCK else each for each in buckets]
    numbers = padded[0].contiguous() if len(padded) == 1 else torch.cat(padded)
    total = len(numbers) // BLOCK
    known = _known(tuple(sizes), device)
    if not total:
        return Packed(
            torch.empty(0, dtype=torch.uint8, device=device), known.headers, torch.zeros_like(known.headers[0])
        )
    widths = torch.empty(total, dtype=torch.int64, device=device)
    counted = torch.zeros(len(known.costs) + 1, dtype=torch.int64, device=device)  # by bucket and width; the peak
    with torch.cuda.device_of(numbers):
        grid = (triton.cdiv(total, _BLOCKS),)
        _measure[grid](numbers, widths, counted, known.groups, total, len(known.costs), BLOCKS=_BLOCKS)
    alike, peak = counted[:-1], counted[-1:]
    group = known.groups + widths  # of one width in one bucket
    order = torch.argsort(group, stable=True)
    first = alike.cumsum(0) - alike
    spent = alike * known.costs
    start = spent.cumsum(0) - spent + known.headers_of_groups
    of_bucket = spent.view(len(sizes), -1).sum(1)
    ends = of_bucket.cumsum(0) + known.headers

    everything = torch.empty(total * (1 + 8 * BLOCK), dtype=torch.uint8, device=device)
    everything[(ends - of_bucket)[known.buckets] + known.before_data] = widths.to(torch.uint8)
    group = group[order]
    tables = torch.stack((order, widths[order], alike[group], first[group], start[group]))
    with torch.cuda.device_of(numbers):
        grid = (triton.cdiv(8 * total, _COLUMNS),)
        _pack[grid](numbers, everything, tables, total, 2.0**-grid_bits, COLUMNS=_COLUMNS)
    return Packed(everything, ends, peak)


@dataclass(frozen=True)
class _Known:
    """What follows from the sizes of buckets alone, on the device: int64."""

    buckets: Tensor
    """(blocks,) which bucket each block is in."""
    groups: Tensor
    """(blocks,) the number of its bucket's first group: a group is all blocks of one width in one bucket."""
    before_data: Tensor
    """(blocks,) where its width stands, from the first byte of its bucket's data: below 0."""
    costs: Tensor
    """(groups,) bytes of a block."""
    headers: Tensor
    """(buckets,) bytes of widths, up to the end of each bucket's."""
    headers_of_groups: Tensor


@functools.lru_cache(maxsize=16)
def _known(sizes: tuple[int, ...], device: torch.device) -> _Known:
    """sizes: the buckets' numbers of blocks."""
    lengths = np.array(sizes, dtype=np.int64)
    buckets, headers = np.repeat(np.arange(len(sizes)), lengths), np.cumsum(lengths)
    found = (
        buckets,
        buckets * (_RAW + 1),
        np.arange(len(buckets)) - headers[buckets],
        np.tile(np.arange(_RAW + 1) * (BLOCK // 8), len(sizes)),
        headers,
        np.repeat(headers, _RAW + 1),
    )
    return _Known(*(to_device(each, device) for each in found))


@torch.no_grad()
def unpack(payload: Buffer, count: int, grid_bits: int, out: Tensor, *, add: bool = False) -> None:
    """Into `out`, (count,) int64 on a device, or added to it: NOT_FINITE stays. Starts kernels only."""
    everything = np.frombuffer(payload, dtype=np.uint8)
    total = -(-count // BLOCK)
    if not total:
        return
    widths = everything[:total]
    order = np.argsort(widths, kind="stable")
    sorted_widths = widths[order].astype(np.int64)
    alike = np.bincount(widths, minlength=_RAW + 1)
    spent = alike * (BLOCK // 8) * np.arange(_RAW + 1)
    first, start = np.cumsum(alike) - alike, np.cumsum(spent) - spent + total
    tables = np.stack(
        (order, sorted_widths, alike[sorted_widths], first[sorted_widths], start[sorted_widths]), dtype=np.int64
    )
    data, there = to_device(everything, out.device), to_device(tables, out.device)
    with torch.cuda.device_of(out):
        grid = (triton.cdiv(total, _BLOCKS),)
        _unpack[grid](data, out, there, total, count, 2.0**grid_bits, ADD=add, BLOCKS=_BLOCKS)


@triton.jit
def _measure(numbers, widths, counted, groups, total, peak, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    valid = block < total
    place = block[:, None] * 64 + tl.arange(0, 64)[None, :]
    value = tl.load(numbers + place, mask=place < total * 64, other=0)
    widest = tl.max((value << 1) ^ (value >> 63), axis=1)
    width = tl.zeros((BLOCKS,), dtype=tl.int64)
    for bit in tl.static_range(54):
        width += (widest >= (1 << bit)).to(tl.int64)
    width = tl.where(width > 53, 64, width)
    tl.store(widths + block, width, mask=valid)
    group = tl.load(groups + block, mask=valid, other=0)
    tl.atomic_add(counted + group + width, tl.full((BLOCKS,), 1, dtype=tl.int64), mask=valid)
    magnitude = tl.where(value == -4611686018427387904, 0, tl.where(value < 0, -value, value))
    tl.atomic_max(counted + peak, tl.max(tl.max(magnitude, axis=1), axis=0))


@triton.jit
def _place(width, alike, column, byte):  # type: ignore[no-untyped-def]
    """Of a byte of a column, after the first byte of all columns of that width."""
    whole = (width >> 3) << 3
    rest = byte - whole
    in_4 = ((width & 4) > 0) & (rest < 4)
    after_4 = whole + (width & 4)
    in_2 = ((width & 2) > 0) & (byte < after_4 + 2)
    after_2 = whole + (width & 6)
    plane = tl.where(rest < 0, (byte >> 3) << 3, tl.where(in_4, whole, tl.where(in_2, after_4, after_2)))
    size = tl.where(rest < 0, 8, tl.where(in_4, 4, tl.where(in_2, 2, 1)))
    place = plane * alike * 8 + column * size + (byte - plane)
    return tl.where(width == 64, column * 64 + byte, place)


@triton.jit
def _pack(numbers, everything, tables, total, unit, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    here = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    valid = here < total * 8
    block = here // 8
    width = tl.load(tables + total + block, mask=valid, other=0)
    alike = tl.load(tables + 2 * total + block, mask=valid, other=1)
    first = tl.load(tables + 3 * total + block, mask=valid, other=0)
    start = tl.load(tables + 4 * total + block, mask=valid, other=0)
    column = here - first * 8
    raw = width == 64
    for word in range(8):  # unrolled it would take long to compile
        bits = tl.zeros((COLUMNS,), dtype=tl.uint64)
        for row in tl.static_range(8):
            shift = row * width - 64 * word
            touches = valid & (width > 0) & (shift < 64) & (shift + width > 0)
            number = tl.where(raw, column * 8 + row, row * alike * 8 + column)
            source = tl.load(tables + first + number // 64, mask=touches, other=0)
            value = tl.load(numbers + source * 64 + number % 64, mask=touches, other=0)
            folded = ((value << 1) ^ (value >> 63)).to(tl.uint64)
            plain = (value.to(tl.float64) * unit).to(tl.uint64, bitcast=True)
            lost = tl.full((COLUMNS,), 0x7FF8000000000000, dtype=tl.uint64)
            folded = tl.where(raw, tl.where(value == -4611686018427387904, lost, plain), folded)
            up = tl.minimum(tl.maximum(shift, 0), 63).to(tl.uint64)
            down = tl.minimum(tl.maximum(-shift, 0), 63).to(tl.uint64)
            shifted = tl.where(shift >= 0, folded << up, folded >> down)
            bits = bits | tl.where(touches, shifted, tl.zeros((COLUMNS,), dtype=tl.uint64))
        for each in tl.static_range(8):
            byte = tl.zeros((COLUMNS,), dtype=tl.int64) + (word * 8 + each)
            there = start + _place(width, alike, column, byte)
            tl.store(everything + there, (bits >> (8 * each)).to(tl.uint8), mask=valid & (byte < width))


@triton.jit
def _unpack(everything, out, tables, total, count, scale, ADD: tl.constexpr, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    here = tl.program_id(0).to(tl.int64) * (BLOCKS * 64) + tl.arange(0, BLOCKS * 64)
    block = here // 64
    valid = block < total
    source = tl.load(tables + block, mask=valid, other=0)
    width = tl.load(tables + total + block, mask=valid, other=0)
    alike = tl.load(tables + 2 * total + block, mask=valid, other=1)
    first = tl.load(tables + 3 * total + block, mask=valid, other=0)
    start = tl.load(tables + 4 * total + block, mask=valid, other=0)
    raw = width == 64
    number = (block - first) * 64 + here % 64
    column = tl.where(raw, number // 8, number % (alike * 8))
    begin = tl.where(raw, (number % 8) * 64, number // (alike * 8) * width)
    bits = tl.zeros((BLOCKS * 64,), dtype=tl.uint64)
    for each in tl.static_range(8):
        byte = (begin >> 3) + each
        there = start + _place(width, alike, column, byte)
        found = tl.load(everything + there, mask=valid & (byte * 8 < begin + width), other=0)
        bits = bits | (found.to(tl.uint64) << (8 * each))
    bits = bits >> (begin & 7).to(tl.uint64)
    one = tl.full((BLOCKS * 64,), 1, dtype=tl.uint64)
    bits = tl.where(raw, bits, bits & ((one << tl.minimum(width, 63).to(tl.uint64)) - one))
    half = (bits >> 1).to(tl.int64)
    value = half ^ -((bits & 1).to(tl.int64))
    exponent = (bits >> 52) & 0x7FF
    plain = bits.to(tl.float64, bitcast=True)
    whole = (tl.where(raw & (exponent < 0x7FF), plain, 0.0) * scale).to(tl.int64)
    lost = tl.full((BLOCKS * 64,), -4611686018427387904, dtype=tl.int64)
    value = tl.where(raw, tl.where(exponent == 0x7FF, lost, whole), value)
    place = source * 64 + here % 64
    inside = valid & (place < count)
    if ADD:
        before = tl.load(out + place, mask=inside, other=0)
        value = tl.where((before == lost) | (value == lost), lost, before + value)
    tl.store(out + place, value, mask=inside)
