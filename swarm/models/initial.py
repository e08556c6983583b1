"""Initial values that depend only on the run's seed and the name of a tensor, not on the cuts.

They are the same on every machine. Value i is (2·Σs + 12)·2^-17; the sum is over the twelve signed 16-bit lanes s of
the outputs 3i + 1 … 3i + 3 of splitmix64. This is nearly normal, with mean 0, variance 1 and magnitude at most 6, and
exact in fp32.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from swarm.splitmix import splitmix

_WORDS = 3
"""64-bit words per value, with four lanes each."""
_BLOCK = 1 << 14
"""Number of values computed at once, so that intermediate results fit into the cache."""


def seeded_normal(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Approximately standard normal values, fp32 on the CPU."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    start = int.from_bytes(digest[:8], "little")
    values = torch.empty(math.prod(shape))
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK]
        counter = torch.arange(_WORDS * first + 1, _WORDS * (first + len(block)) + 1)
        lanes = splitmix(counter, start).view(torch.int16).view(len(block), 4 * _WORDS)
        block.copy_(lanes.sum(1))
    return values.mul_(2).add_(4 * _WORDS).mul_(2.0**-17).view(shape)
