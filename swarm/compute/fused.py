"""Triton kernels that add gradients: one finds all peaks, the next one rounds and adds, like `adding.plain`.

Each program processes a part of one tensor, which it finds in a table of addresses.

Importing this module needs Triton, which is part of torch's CUDA wheels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from swarm.compute.adding import Given
from swarm.compute.host_copy import to_device

_BLOCK = 4096
"""Elements that one program processes."""
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_WIDE = 4
"""Added to the code of the gradient's dtype if the sums are int64."""


@torch.no_grad()
def add(given: Sequence[Given], peaks: Tensor, room: Tensor, scale: float, most: float) -> None:
    device = peaks.device
    parts = _parts(tuple(each.gradient.numel() for each in given), device)
    if not parts.shape[1]:
        return
    addresses = np.array([(each.sums.data_ptr(), each.gradient.data_ptr()) for each in given], dtype=np.int64)
    kinds = [_KINDS[each.gradient.dtype] + _WIDE * (each.sums.dtype == torch.int64) for each in given]
    counts = [each.gradient.numel() for each in given]
    table = np.stack((*addresses.T, counts, [each.place for each in given], kinds), dtype=np.int64)
    aligned = not ((addresses % 16).any() or any(count % 16 for count in counts))
    there, grid = to_device(table, device), (parts.shape[1],)
    with torch.cuda.device_of(peaks):  # Triton starts kernels on the current device
        _find_peaks[grid](there, parts, peaks.view(torch.int32), len(given), grid[0], ALIGNED=aligned, BLOCK=_BLOCK)
        _add_rounded[grid](there, parts, peaks, room, len(given), grid[0], scale, most, ALIGNED=aligned, BLOCK=_BLOCK)


@functools.lru_cache(maxsize=16)
def _parts(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """(2, programs) int64: the tensor of each program, and the block in it. counts: elements of each tensor."""
    blocks = [np.arange(-(-count // _BLOCK)) for count in counts]
    tensors = np.repeat(np.arange(len(counts)), [len(each) for each in blocks])
    return to_device(np.stack((tensors, np.concatenate(blocks)), dtype=np.int64), device)


@triton.jit(do_not_specialize=["count", "programs"])  # otherwise Triton compiles the kernels again for each model
def _find_peaks(table, parts, peaks, count, programs, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compare magnitudes by their bits: as integers they have the same order, and NaN is the largest."""
    row = tl.load(parts + tl.program_id(0))
    place = tl.load(parts + programs + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    mask = place < _end(tl.load(table + 2 * count + row), ALIGNED)
    values = _gradient(table, row, place, mask, count, ALIGNED)
    bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.atomic_max(peaks + tl.load(table + 3 * count + row), tl.max(bits, axis=0))


@triton.jit(do_not_specialize=["count", "programs"])
def _add_rounded(  # type: ignore[no-untyped-def]
    table, parts, peaks, room, count, programs, scale, most, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.load(parts + tl.program_id(0))
    at = tl.load(table + 3 * count + row)
    height = tl.load(peaks + at)
    fits = (height <= most) & (_rounded(height, scale) < tl.load(room + at))
    place = tl.load(parts + programs + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    mask = place < _end(tl.where(fits, tl.load(table + 2 * count + row), 0), ALIGNED)
    values = _gradient(table, row, place, mask, count, ALIGNED)
    whole = _rounded(tl.abs(values), scale)
    whole = tl.where(values < 0, -whole, whole)
    address = tl.load(table + row)
    if tl.load(table + 4 * count + row) >= 4:
        wide = _pointers(address, place, tl.int64, ALIGNED)
        tl.store(wide, tl.load(wide, mask=mask, other=0) + whole, mask=mask)
    else:
        narrow = _pointers(address, place, tl.int32, ALIGNED)
        tl.store(narrow, tl.load(narrow, mask=mask, other=0) + whole.to(tl.int32), mask=mask)


@triton.jit
def _gradient(table, row, place, mask, count, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradient values as fp32; 0 outside the tensor."""
    address = tl.load(table + count + row)
    kind = tl.load(table + 4 * count + row) % 4
    if kind == 0:
        values = tl.load(_pointers(address, place, tl.float32, ALIGNED), mask=mask, other=0.0)
    elif kind == 1:
        values = tl.load(_pointers(address, place, tl.bfloat16, ALIGNED), mask=mask, other=0.0).to(tl.float32)
    else:
        values = tl.load(_pointers(address, place, tl.float16, ALIGNED), mask=mask, other=0.0).to(tl.float32)
    return values


@triton.jit
def _end(count, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """`count`, declared to the compiler as a multiple of 16 if it is one, so that it copies 16 bytes at a time."""
    if ALIGNED:
        count = count // 16 * 16
    return count


@triton.jit
def _pointers(address, place, kind: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    pointers = address.to(tl.pointer_type(kind)) + place
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit
def _rounded(magnitude, scale):  # type: ignore[no-untyped-def]
    """magnitude·scale rounded to int64, ties to even. fp32 numbers ≥ 2^23 are integers; adding 2^23 rounds others."""
    scaled = magnitude * scale
    return tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled).to(tl.int64)
