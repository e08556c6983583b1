"""Whether numbers are numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no value of these tensors, all on one device, is NaN or infinite. Reads each once, and waits once."""
    bounds = [torch.stack(torch.aminmax(tensor)) for tensor in tensors if tensor.numel()]  # NaN wins in both
    return not bounds or bool(torch.stack(bounds).isfinite().all())
