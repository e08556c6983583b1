"""A checksum of a stage's state that costs next to nothing: whether replicas still hold the same bits.

It finds what no digest of messages can: memory that has changed by itself, a device that computed an update otherwise.
Without a key it is no defence against lies: whoever has heard it can repeat it. With a key that nobody knew before, it
shows that whoever answers had all of the state at hand just then: each key multiplies the bits with other numbers.

The bits of every tensor, as 32-bit integers, are multiplied with odd numbers that follow from their place in blocks of
65536, and added, modulo 2^32; every such sum then with an odd one that follows from the block's number. Whole numbers
add up the same in any order, so the device adds them as it likes. A change of one bit always changes the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from swarm.models.splitmix import splitmix

_BLOCK = 1 << 16  # elements: part of the definition, never change it
_AT_ONCE = 1 << 10
"""Blocks that are multiplied in one go on a device that is no CPU."""
_START = 0x6269_7473


def checksum(tensors: Iterable[Tensor], key: int = 0) -> int:
    """Of fp32 tensors, in this order, 63 bits. `key`: less than 2^63; 0: none."""
    sums: list[int] = []
    for tensor in tensors:
        sums += _sums(tensor.detach().reshape(-1).view(torch.int32), key)
    odd = _odd(len(sums), "cpu", ~key if key else 0).tolist()
    total: int = sum(of_block * factor for of_block, factor in zip(sums, odd, strict=True))
    return total % (1 << 63)


def _sums(bits: Tensor, key: int) -> list[int]:
    """By block, of the bits of a flat tensor."""
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
    """So many odd numbers, int64. `key`: from −2^63 to 2^63 − 1."""
    start = _START if key == 0 else int(splitmix(torch.tensor([_START]), key % (1 << 64))[0]) % (1 << 64)
    return splitmix(torch.arange(1, count + 1), start).to(device) | 1
