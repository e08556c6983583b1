"""Adds one gradient to a tensor's whole-number sum on an accelerator, without waiting for it.

The sum is an integer in units of the grid. The gradient is rounded to the grid, ties to even, in fp32: scaling by a
power of two is exact. It is added only if it is finite and the sum's bound stays below its limit. The device decides
that, so the host need not know the gradient's size.

`plain` does this with torch operations on any device. `fused` takes two Triton kernels on CUDA, where torch brings
Triton along, and gives the same bits. `adder` tries the kernels once for each device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from swarm.compute.kernels import checked

Add = Callable[[Tensor, Tensor, Tensor, Tensor, float, float], None]
"""(sums, gradient, peak, room, scale, most) → nothing.

sums: (count,) int32 or int64, in place. gradient: (count,), any float. peak: (1,) fp32, 0 before; the gradient's
largest magnitude after, NaN if there is one. room: (1,) int64: so far below its limit is the sum's bound. scale: 2^b.
most: a larger gradient is not added.
"""


@functools.cache
def adder(device: torch.device) -> Add:
    """The quickest way that is right on `device`."""
    return checked("add gradients", device, _fused, lambda found: agrees(found, device)) or plain


def _fused() -> Add:
    from swarm.compute import fused

    return fused.add


@torch.no_grad()
def plain(sums: Tensor, gradient: Tensor, peak: Tensor, room: Tensor, scale: float, most: float) -> None:
    if not gradient.numel():
        return
    low, high = torch.aminmax(gradient)  # NaN wins in both
    peak.copy_(torch.maximum(-low, high).float())
    rounded = gradient.float().mul(scale).round_()
    sums.add_(torch.where(fits(peak, room, scale, most), rounded, 0.0).to(sums.dtype))


def fits(peak: Tensor, room: Tensor, scale: float, most: float) -> Tensor:
    """Whether gradients with these peaks are added: bool, of the same shape."""
    return (peak <= most) & (units(peak, scale) < room)


def units(peak: Tensor, scale: float) -> Tensor:
    """A peak in units of the grid, rounded as a gradient is: fp64, since fp32 against int64 would compare in fp32."""
    return (peak * scale).round().double()


def agrees(add: Add, device: torch.device) -> bool:
    """Whether `add` leaves the same bits as `plain` on the CPU, for gradients of every sort."""
    generator = torch.Generator().manual_seed(1)
    scale, most = 2.0**10, 2.0**41
    halves = torch.arange(-4099, 4100) / 2048  # ties, on both sides of zero
    large = torch.randn(70_001, generator=generator) * torch.randint(0, 22, (70_001,), generator=generator).exp2()
    cases = [
        (values.to(kind), whole, room)
        for values in (halves, large, large[:1], halves.clone().index_fill_(0, torch.tensor([7]), torch.nan))
        for kind in (torch.float32, torch.bfloat16, torch.float16)
        for whole, room in ((torch.int32, 1 << 31), (torch.int64, 1 << 53), (torch.int32, 1 << 10))
    ]
    for gradient, whole, room in cases:
        before = torch.randint(-9999, 9999, gradient.shape, generator=generator, dtype=whole)
        found = []
        for run, where in ((plain, torch.device("cpu")), (add, device)):
            sums, peak = before.to(where, copy=True), torch.zeros(1, device=where)
            run(sums, gradient.to(where), peak, torch.tensor([room], device=where), scale, most)
            found.append((sums.cpu(), peak.cpu()))
        (sums, peak), (other, height) = found
        if not torch.equal(sums, other) or not torch.equal(peak.isfinite(), height.isfinite()):
            return False
        if bool(peak.isfinite()) and not torch.equal(peak, height):
            return False
    return True
