"""A fast checksum of a stage's state, which shows whether replicas have the same bits.

It detects errors that digests of messages cannot detect: corrupted memory, or a device that computed an update
differently. Without a key it does not detect liars, because a liar can repeat the checksum of another peer. With a new
random key it proves that the answering peer has the whole state, because each key gives other multipliers.

The bits of each tensor, as 32-bit integers, are multiplied by odd numbers that depend on their place within blocks of
65536, and added modulo 2^32. The sum of each block is multiplied by an odd number that depends on the block's number.
Integer sums do not depend on the order, so the device may add in any order. A change of one bit always changes the
result.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from swarm.splitmix import splitmix

_BLOCK = 1 << 16  # elements: part of the definition, never change it
_AT_ONCE = 1 << 10
"""Number of blocks that an accelerator processes at once."""
_START = 0x6269_7473


def checksum(tensors: Iterable[Tensor], key: int = 0) -> int:
    """The checksum (63 bits) of fp32 tensors in this order. `key`: less than 2^63; 0: no key."""
    sums: list[int] = []
    for tensor in tensors:
        sums += _sums(tensor.detach().reshape(-1).view(torch.int32), key)
    odd = _odd(len(sums), "cpu", ~key if key else 0).tolist()
    total: int = sum(of_block * factor for of_block, factor in zip(sums, odd, strict=True))
    return total % (1 << 63)


def _sums(bits: Tensor, key: int) -> list[int]:
    """The sum of each block of a flat tensor's bits."""
    whole = len(bits) // _BLOCK * _BLOCK
    factors = _odd(_BLOCK, bits.device, key).to(torch.int32)
    found: list[int] = []
    at_once = 1 if bits.device.type == "cpu" else _AT_ONCE
    for blocks in bits[:whole].view(-1, _BLOCK).split(at_once):
        found += (blocks * factors).sum(1, dtype=torch.int32).tolist()
    if whole < len(bits):
        found.append(int((bits[whole:] * factors[: len(bits) - whole]).sum(dtype=torch.int32)))
    return found


@lru_cache(maxsize=64)
def _odd(count: int, device: torch.device | str, key: int) -> Tensor:
    """(count,) int64: odd multipliers. `key`: from −2^63 to 2^63 − 1."""
    start = _START if key == 0 else int(splitmix(torch.tensor([_START]), key % (1 << 64))[0]) % (1 << 64)
    return splitmix(torch.arange(1, count + 1), start).to(device) | 1
