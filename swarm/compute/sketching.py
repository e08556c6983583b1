"""Computes the sketch of a stage's sums (swarm/protocol/sketch.py): one pass, about one addition per number.

Each number is added to one of 64 sums, chosen by its place modulo 64, with a sign that follows from a seed. The sign is
a product of two: the sign of its block of 16384 numbers, and the sign of its place in the block. The place signs are
rotated for each block, by a multiple of 64 places that also follows from the seed. So whole blocks can be added to or
subtracted from one block, and the place signs are applied only once, to that block. Integers are added modulo 2^64, so
all devices get the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarm.protocol.sketch import PROJECTIONS, Sketch
from swarm.splitmix import splitmix

WIDTH = 1 << 14  # elements: part of the definition, never change it
_TURNS = WIDTH // PROJECTIONS
_HOST_PIECE = 1 << 18
_DEVICE_PIECE = 1 << 22
"""Elements that are read at a time: a multiple of the block size."""


@dataclass(frozen=True)
class Signs:
    """The signs of one seed."""

    start: int
    places: Tensor
    """(WIDTH,) int8: the signs of the places in a block, without rotation."""

    @classmethod
    def of(cls, seed: str) -> Signs:
        drawn = hashlib.blake2b(seed.encode(), digest_size=16).digest()
        words = splitmix(torch.arange(1, WIDTH // 32 + 1), _word(drawn[:8]))
        bits = (words[:, None] >> torch.arange(32)) & 1
        return cls(_word(drawn[8:]), (1 - 2 * bits).reshape(-1).to(torch.int8))

    def blocks(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """(signs, turns), int64, of `count` blocks from block `first` on. turns: rotations in units of 64 places."""
        words = splitmix(torch.arange(first + 1, first + count + 1), self.start)
        return 1 - 2 * (words & 1), (words >> 1) & (_TURNS - 1)


def sketch_of(numbers: Callable[[slice], Tensor], where: slice, device: torch.device, *seeds: str) -> list[Sketch]:
    """The sketches of a part of a flat vector, one for each seed. The part is read once.

    numbers: returns a part of the vector, int64 on `device`.
    """
    cuda = device.type == "cuda"
    folds = [(_DeviceFold if cuda else _HostFold)(Signs.of(seed), device) for seed in seeds]
    at_once = _DEVICE_PIECE if cuda else _HOST_PIECE
    for start in range(where.start, where.stop, at_once):
        piece = numbers(slice(start, min(start + at_once, where.stop)))
        for fold in folds:
            fold.add(piece, (start - where.start) // WIDTH)
    return [fold.result() for fold in folds]


class _HostFold:
    def __init__(self, signs: Signs, _device: torch.device) -> None:
        self._signs = signs
        self._sums = np.zeros(2 * WIDTH, dtype=np.int64)
        """The second half belongs to the places of the first. A rotated block needs one addition, and not two."""

    def add(self, numbers: Tensor, first: int) -> None:
        """Add the numbers of consecutive blocks, the first of which is block `first`."""
        values = numbers.cpu().numpy()
        signs, turns = (each.tolist() for each in self._signs.blocks(first, -(-len(values) // WIDTH)))
        for index, (sign, turn) in enumerate(zip(signs, turns, strict=True)):
            block = values[index * WIDTH : (index + 1) * WIDTH]
            put = np.add if sign > 0 else np.subtract
            into = self._sums[turn * PROJECTIONS :][: len(block)]
            put(into, block, out=into)

    def result(self) -> Sketch:
        signed = self._sums.reshape(2, WIDTH).sum(0) * self._signs.places.numpy()
        return tuple(signed.reshape(_TURNS, PROJECTIONS).sum(0).tolist())


class _DeviceFold:
    def __init__(self, signs: Signs, device: torch.device) -> None:
        self._signs = signs
        self._table = signs.places.to(device).repeat(2).unfold(0, WIDTH, PROJECTIONS)
        """(turns, WIDTH), a view: the place signs of a block for each rotation."""
        self._sums = torch.zeros(PROJECTIONS, dtype=torch.int64, device=device)

    def add(self, numbers: Tensor, first: int) -> None:
        signs, turns = (each.to(numbers.device) for each in self._signs.blocks(first, -(-len(numbers) // WIDTH)))
        whole = len(numbers) // WIDTH
        blocks = numbers[: whole * WIDTH].view(whole, WIDTH)
        self._add(blocks, self._table[turns[:whole]] * signs[:whole, None].to(torch.int8))
        if rest := len(numbers) - whole * WIDTH:
            row = torch.zeros(WIDTH, dtype=torch.int64, device=numbers.device)
            row[:rest] = numbers[whole * WIDTH :]
            self._add(row[None], self._table[turns[whole:]] * signs[whole:, None].to(torch.int8))

    def _add(self, blocks: Tensor, signs: Tensor) -> None:
        self._sums += (blocks * signs).view(-1, PROJECTIONS).sum(0)

    def result(self) -> Sketch:
        return tuple(self._sums.tolist())


def _word(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
