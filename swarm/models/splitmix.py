"""splitmix64 on tensors: random numbers that are integers from end to end, so that every machine draws the same.

torch's own generators do not: `torch.randn` calls a logarithm and a cosine, and each instruction set has its own.
"""

from __future__ import annotations

from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def splitmix(counter: Tensor, start: int) -> Tensor:
    """Outputs number `counter` (int64, any shape; the first is 1) of the generator started at `start`, 64 bits each."""
    mixed = counter * signed(_INCREMENT) + signed(start)
    mixed = (mixed ^ _shifted(mixed, 30)).mul_(signed(_MULTIPLIERS[0]))
    mixed = (mixed ^ _shifted(mixed, 27)).mul_(signed(_MULTIPLIERS[1]))
    return mixed ^ _shifted(mixed, 31)


def signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word. torch's int64 products wrap around."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's is arithmetic."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)
