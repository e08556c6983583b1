"""The squared norm of reduced gradients. All replicas must get the same value, so it is defined bit by bit.

The squares are summed per tensor in fp64; these sums are added in layout order. Within a tensor, blocks of 16384
squares are added elementwise, one after another; then the halves of the block are added until one number is left. All
operations are elementwise, so the result does not depend on threads or vector units.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from swarm.compute.grid import NOT_FINITE
from swarm.compute.kernels import checked
from swarm.compute.layout import Layout

_BLOCK = 1 << 14  # elements: part of the definition, never change it


@torch.no_grad()
def squared_norm(flat: Tensor, layout: Layout, unit: float = 1.0) -> float:
    """Sum of the squares of the counted elements (`Layout.counted`) of `flat`; NaN if one is not finite.

    `flat`: (layout.length,) floats, or int64 with NOT_FINITE, in units of `unit`, a power of two. Waits for the device
    once.
    """
    lanes = {index: _lanes(flat[part]) for index, part in enumerate(layout.counted)}
    alike: dict[int, list[int]] = defaultdict(list)
    for index, each in lanes.items():
        alike[len(each)].append(index)
    folded = {length: _folded(torch.stack([lanes[index] for index in found])) for length, found in alike.items()}
    order = [index for found in alike.values() for index in found]
    values = torch.cat(list(folded.values())).tolist() if folded else []
    of_tensor = dict(zip(order, values, strict=True))
    total = 0.0
    for index in range(len(lanes)):
        total += of_tensor[index] * unit * unit
    return total


def sum_of_squares(values: Tensor) -> float:
    """The sum of the squares of (count,) floats, as `squared_norm` adds those of one tensor. Waits for the device."""
    return _folded(_lanes(values)[None]).item()


def _lanes(values: Tensor) -> Tensor:
    """(at most _BLOCK,) fp64: the squares of all blocks, added one block after another."""
    if (lanes := kernel(values.device)) is not None:
        return lanes(values, _BLOCK)
    return _plain_lanes(values)


@functools.cache
def kernel(device: torch.device) -> Callable[[Tensor, int], Tensor] | None:
    """The kernel that adds squares on `device`; None: use plain torch operations."""
    return checked("add up squares", device, _fused, lambda found: agrees(found, device))


def _fused() -> Callable[[Tensor, int], Tensor]:
    from swarm.compute import fused_norm

    return fused_norm.lanes


def agrees(lanes: Callable[[Tensor, int], Tensor], device: torch.device) -> bool:
    """Whether `lanes` gives the same bits as the CPU, tested with numbers whose squares are rounded."""
    generator = torch.Generator().manual_seed(1)
    for count in (3, _BLOCK, 3 * _BLOCK + 100):
        whole = torch.randint(-(1 << 52), 1 << 52, (count,), generator=generator)
        lost = whole.clone()
        lost[count // 2] = NOT_FINITE
        for values in (whole, lost, whole.double() / 3, whole.float()):
            here, there = _plain_lanes(values), lanes(values.to(device), _BLOCK).cpu()
            if not torch.equal(here.isnan(), there.isnan()) or not torch.equal(here.nan_to_num(), there.nan_to_num()):
                return False
    return True


def _plain_lanes(values: Tensor) -> Tensor:
    lanes = torch.zeros(min(len(values), _BLOCK), dtype=torch.float64, device=values.device)
    squares = torch.empty_like(lanes)
    for part in values.split(_BLOCK):
        each = squares[: len(part)].copy_(part)
        if not values.is_floating_point() and _may_be_lost(part):
            each.masked_fill_(part == NOT_FINITE, torch.nan)
        lanes[: len(part)] += each.mul_(each)  # two operations: a fused multiply-add would round only once
    return lanes


def _may_be_lost(part: Tensor) -> bool:
    """Whether `part` may contain NOT_FINITE; on an accelerator always True, because a test would make the host wait."""
    return part.device.type != "cpu" or bool(part.numpy().min(initial=0) == NOT_FINITE)


def _folded(lanes: Tensor) -> Tensor:
    """The sum of each tensor's lanes: (tensors,). lanes: (tensors, count), overwritten."""
    count = lanes.shape[1]
    if not count:
        return lanes.sum(1)
    while count > 1:
        half = (count + 1) // 2
        lanes[:, : count - half] += lanes[:, half:count].clone()
        count = half
    return lanes[:, 0]
