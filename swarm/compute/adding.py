"""Adds the gradients of a microbatch to whole-number sums on an accelerator, without waiting for it.

A sum is an integer in units of the grid. A gradient is rounded to the grid, ties to even, in fp32: scaling by a power
of two is exact. It is added only if it is finite and the sum's bound stays below its limit. The device decides that, so
the host need not know the gradient's size.

`plain` does this with torch operations on any device, tensor by tensor. `fused` takes two Triton kernels for all of
them on CUDA, where torch brings Triton along, and gives the same bits. `adder` tries the kernels once for each device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.compute.kernels import checked


class Given(NamedTuple):
    """A tensor's gradient, which is to be added."""

    place: int
    """Among the peaks and the room of all tensors."""
    sums: Tensor
    """(count,) int32 or int64, in place."""
    gradient: Tensor
    """(count,) fp32, bf16 or fp16, contiguous."""


Add = Callable[[Sequence[Given], Tensor, Tensor, float, float], None]
"""(given, peaks, room, scale, most) → nothing.

given: at most one for each place. peaks: (tensors,) fp32, 0 before; the largest magnitude of each gradient after, NaN
if there is one. room: (tensors,) int64: so far below its limit is the bound of each sum. scale: 2^b. most: a gradient
with a larger number is not added.
"""


@functools.cache
def adder(device: torch.device) -> Add:
    """The quickest way that is right on `device`."""
    return checked("add gradients", device, _fused, lambda found: agrees(found, device)) or plain


def _fused() -> Add:
    from swarm.compute import fused

    return fused.add


@torch.no_grad()
def plain(given: Sequence[Given], peaks: Tensor, room: Tensor, scale: float, most: float) -> None:
    for place, sums, gradient in given:
        if gradient.numel():
            low, high = torch.aminmax(gradient)  # NaN wins in both
            peak = peaks[place].copy_(torch.maximum(-low, high).float())
            rounded = gradient.float().mul(scale).round_()
            sums.add_(torch.where(fits(peak, room[place], scale, most), rounded, 0.0).to(sums.dtype))


def fits(peaks: Tensor, room: Tensor, scale: float, most: float) -> Tensor:
    """Whether gradients with these peaks are added: bool, of the same shape."""
    return (peaks <= most) & (units(peaks, scale) < room)


def units(peaks: Tensor, scale: float) -> Tensor:
    """Peaks in units of the grid, rounded as gradients are.

    The result is fp64: a comparison of fp32 with the int64 of `room` would happen in fp32.
    """
    return (peaks * scale).round().double()


def agrees(add: Add, device: torch.device) -> bool:
    """Whether `add` leaves the same bits as `plain` on the CPU, for gradients of every sort at once."""
    generator = torch.Generator().manual_seed(1)
    scale, most = 2.0**10, 2.0**41
    halves = torch.arange(-4096, 4096) / 2048  # ties, on both sides of zero
    large = torch.randn(70_000, generator=generator) * torch.randint(0, 22, (70_000,), generator=generator).exp2()
    cases = [
        (values.to(kind), torch.randint(-9999, 9999, values.shape, generator=generator, dtype=whole), room)
        for values in (
            halves,
            large,
            large[:16],
            large[:0],
            halves.clone().index_fill_(0, torch.tensor([7]), torch.nan),
        )
        for kind in (torch.float32, torch.bfloat16, torch.float16)
        for whole, room in ((torch.int32, 1 << 31), (torch.int64, 1 << 53), (torch.int32, 1 << 10))
    ]
    room = torch.tensor([room for _, _, room in cases])
    some = [place for place in range(len(cases)) if place % 5]
    for places, first in ((range(len(cases)), 0), (some, 1)):  # whole tensors, and what lies anywhere in memory
        found = []
        for run, where in ((plain, torch.device("cpu")), (add, device)):
            given = [
                Given(place, cases[place][1].to(where, copy=True)[first:], cases[place][0].to(where)[first:])
                for place in places
            ]
            peaks = torch.zeros(len(cases), device=where)
            run(given, peaks, room.to(where), scale, most)
            found.append(([each.sums.cpu() for each in given], peaks.cpu()))
        (sums, peaks), (others, heights) = found
        if not all(map(torch.equal, sums, others)) or not torch.equal(peaks.isfinite(), heights.isfinite()):
            return False
        if not torch.equal(peaks.nan_to_num(), heights.nan_to_num()):
            return False
    return True
