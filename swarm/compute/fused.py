"""The Triton kernels that add a gradient: one finds its peak, the next rounds and adds, as `adding.plain` does.

Importing this needs Triton. torch's wheels for CUDA carry it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@torch.no_grad()
def add(sums: Tensor, gradient: Tensor, peak: Tensor, room: Tensor, scale: float, most: float) -> None:
    count = gradient.numel()
    if not count:
        return
    grid = (triton.cdiv(count, _BLOCK),)
    with torch.cuda.device_of(sums):  # Triton starts kernels on the current device
        _find_peak[grid](gradient, peak.view(torch.int32), count, BLOCK=_BLOCK)
        _add_rounded[grid](sums, gradient, peak, room, count, scale, most, BLOCK=_BLOCK)


@triton.jit(do_not_specialize_on_alignment=["peak"])  # one tensor's is anywhere
def _find_peak(gradient, peak, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """As bits, magnitudes are ordered like integers, with NaN above all: so the largest needs no rule of its own."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(gradient + place, mask=place < count, other=0.0).to(tl.float32)
    bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.atomic_max(peak, tl.max(bits, axis=0))


@triton.jit(do_not_specialize_on_alignment=["peak", "room"])
def _add_rounded(sums, gradient, peak, room, count, scale, most, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    height = tl.load(peak)
    fits = (height <= most) & (_rounded(height, scale) < tl.load(room))
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    end = tl.where(fits, count, 0)
    mask = place < end
    values = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    whole = _rounded(tl.abs(values), scale)
    whole = tl.where(values < 0, -whole, whole)
    before = tl.load(sums + place, mask=mask, other=0)
    tl.store(sums + place, before + whole.to(before.dtype), mask=mask)


@triton.jit
def _rounded(magnitude, scale):  # type: ignore[no-untyped-def]
    """magnitude·scale, ties to even, int64. From 2^23 on fp32 numbers are whole; below, 2^23 pushes the rest out."""
    scaled = magnitude * scale
    return tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled).to(tl.int64)
