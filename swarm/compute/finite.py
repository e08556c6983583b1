"""Checks for NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def magnitude(tensors: Iterable[Tensor]) -> float:
    """The largest magnitude in these tensors, all on one device; NaN if one of them holds a NaN, 0 if all are empty.

    Reads each tensor once, and waits for the device once.
    """
    bounds = [torch.stack(torch.aminmax(tensor)) for tensor in tensors if tensor.numel()]  # both NaN if one is
    return torch.stack(bounds).abs().amax().item() if bounds else 0.0


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether these tensors, all on one device, contain neither NaN nor infinity. Reads and waits like `magnitude`."""
    return math.isfinite(magnitude(tensors))
