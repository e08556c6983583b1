"""Adds the gradients of a microbatch to integer sums on an accelerator, without waiting for the device.

A sum is an integer in units of the grid. A gradient is rounded to the grid in fp32, ties to even; its scaling by a
power of two is exact. A gradient is added only if it is finite and the bound of the sum stays below its limit. The
device decides this, so the host need not know the size of the gradient.

`plain` uses torch operations on any device, tensor by tensor. On CUDA, `fused` does the same for all tensors with two
Triton kernels, if Triton is installed, and gives the same bits. `adder` tests the kernels once for each device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.compute.kernels import checked


class Given(NamedTuple):
    """The gradient of a tensor, and the sums to which it is added."""

    place: int
    """Index of the tensor in `peaks` and `room`."""
    sums: Tensor
    """(count,) int32 or int64, updated in place."""
    gradient: Tensor
    """(count,) fp32, bf16 or fp16, contiguous."""


Add = Callable[[Sequence[Given], Tensor, Tensor, float, float], None]
"""(given, peaks, room, scale, most) → None.

given: at most one entry for each place. peaks: (tensors,) fp32, 0 before the call; afterwards the largest magnitude of
each gradient, or NaN if it contains one. room: (tensors,) int64, the limit of each sum minus its present bound. scale:
2^b. most: a gradient with a larger magnitude is not added.
"""


@functools.cache
def adder(device: torch.device) -> Add:
    """The fastest implementation that gives correct results on `device`."""
    return checked("add gradients", device, _fused, lambda found: agrees(found, device)) or plain


def _fused() -> Add:
    from swarm.compute import fused

    return fused.add


@torch.no_grad()
def plain(given: Sequence[Given], peaks: Tensor, room: Tensor, scale: float, most: float) -> None:
    for place, sums, gradient in given:
        if gradient.numel():
            low, high = torch.aminmax(gradient)  # both are NaN if there is a NaN
            peak = peaks[place].copy_(torch.maximum(-low, high).float())
            rounded = gradient.float().mul(scale).round_()
            sums.add_(torch.where(fits(peak, room[place], scale, most), rounded, 0.0).to(sums.dtype))


def fits(peaks: Tensor, room: Tensor, scale: float, most: float) -> Tensor:
    """Whether each gradient with these peaks is added: bool, same shape as `peaks`."""
    return (peaks <= most) & (units(peaks, scale) < room)


def units(peaks: Tensor, scale: float) -> Tensor:
    """Peaks in units of the grid, rounded like gradients.

    The result is fp64, because torch would compare an fp32 tensor with the int64 tensor `room` in fp32.
    """
    return (peaks * scale).round().double()


def agrees(add: Add, device: torch.device) -> bool:
    """Whether `add` gives the same bits as `plain` on the CPU, tested with gradients of every kind."""
    generator = torch.Generator().manual_seed(1)
    scale, most = 2.0**10, 2.0**41
    halves = torch.arange(-4096, 4096) / 2048  # ties, positive and negative
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
    for places, first in ((range(len(cases)), 0), (some, 1)):  # aligned tensors, and unaligned views
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
