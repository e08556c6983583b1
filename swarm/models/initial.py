"""Initial values as a function of the run's seed and a tensor's name alone, independent of the cuts.

They are the same on every machine: value i is the sum of twelve signed 16-bit lanes s, those of outputs number 3i + 1 …
3i + 3 of splitmix64, as (2·Σs + 12)·2^-17. That is nearly normal, has mean 0 and variance 1, never exceeds 6, and is
exact in fp32, so no instruction set changes a bit.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from swarm.models.splitmix import splitmix

_WORDS = 3
"""Words per value: twelve lanes."""
_BLOCK = 1 << 14
"""Number of values made at once, so that intermediate results fit into a cache."""


def seeded_normal(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Standard normal values, nearly, fp32 on the CPU."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    start = int.from_bytes(digest[:8], "little")
    values = torch.empty(math.prod(shape))
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK]
        counter = torch.arange(_WORDS * first + 1, _WORDS * (first + len(block)) + 1)
        lanes = splitmix(counter, start).view(torch.int16).view(len(block), 4 * _WORDS)
        block.copy_(lanes.sum(1))
    return values.mul_(2).add_(4 * _WORDS).mul_(2.0**-17).view(shape)
