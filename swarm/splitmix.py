"""splitmix64 on tensors: pseudorandom numbers from integer operations, which are equal on every machine.

torch's generators are not: `torch.randn` uses a logarithm and a cosine, whose rounding depends on the instruction set.
"""

from __future__ import annotations

from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def splitmix(counter: Tensor, start: int) -> Tensor:
    """The outputs with numbers `counter` (int64, any shape, from 1) of the generator with seed `start`, as int64."""
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
