"""Initial values that are a function of the run's seed and a tensor's name, wherever the model is cut."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def seeded_normal(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Standard normal values, fp32 on the CPU."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randn(shape, generator=generator)
