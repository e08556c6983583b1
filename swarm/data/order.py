"""The order of samples: a seeded permutation of 0 … n−1 without a table, or an order of steps with fixed samples.

The permutation is a balanced Feistel network over the next power of two with an even exponent. It is applied until the
result is below n (fewer than four times on average). Its round function is BLAKE2b, so the order is the same on every
machine and with every library release.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


class Permutation:
    """A permutation of range(n), which depends only on (seed, epoch, n). It needs O(1) memory."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        assert n > 0
        self._n = n
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._key = hashlib.sha256(f"swarm sample order v1 seed={seed} epoch={epoch}".encode()).digest()

    def __getitem__(self, position: int) -> int:
        """The sample at `position`, 0 ≤ position < n."""
        assert 0 <= position < self._n
        value = self._encrypt(position)
        while value >= self._n:
            value = self._encrypt(value)
        return value

    def index(self, sample: int) -> int:
        """The position of `sample`, 0 ≤ sample < n."""
        assert 0 <= sample < self._n
        position = self._decrypt(sample)
        while position >= self._n:
            position = self._decrypt(position)
        return position

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for number in range(_ROUNDS):
            left, right = right, left ^ self._round(number, right)
        return left << self._half_bits | right

    def _decrypt(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for number in reversed(range(_ROUNDS)):
            left, right = right ^ self._round(number, left), left
        return left << self._half_bits | right

    def _round(self, number: int, half: int) -> int:
        message = number.to_bytes(1, "little") + half.to_bytes(8, "little")
        digest = hashlib.blake2b(message, digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") & self._mask


class EveryStep:
    """The visits of a codec that uses the previous step: the same microbatch numbers, with other samples.

    `mutual`: whether both ends of a boundary use the previous visit; otherwise only the sender does.
    """

    def __init__(self, mutual: bool) -> None:
        self.mutual = mutual

    def previous(self, step: int) -> int | None:
        return step - 1 if step else None

    def next(self, step: int) -> int:
        return step + 1


class StepOrder:
    """The order of a run whose epochs shuffle steps instead of samples: a step has the same samples in every epoch.

    Samples are shuffled once and divided into `blocks` blocks, one for each step. Each epoch visits every block once,
    in an order of its own (the first epoch in the order of the blocks). So microbatch m of a step has the same samples
    as microbatch m of the step that visited the block in the previous epoch. It depends only on (seed, blocks, step).
    """

    mutual = True

    def __init__(self, blocks: int, seed: int) -> None:
        assert blocks > 0
        self._blocks = blocks
        self._seed = seed
        self._orders: dict[int, Permutation] = {}

    def block(self, step: int) -> int:
        """The block visited in `step`."""
        epoch, position = divmod(step, self._blocks)
        return self._order(epoch)[position] if epoch else position

    def previous(self, step: int) -> int | None:
        """The step of the previous epoch that visited the same block; None in the first epoch."""
        return self._visit(step // self._blocks - 1, self.block(step)) if step >= self._blocks else None

    def next(self, step: int) -> int:
        """The step of the next epoch that visits the same block."""
        return self._visit(step // self._blocks + 1, self.block(step))

    def _visit(self, epoch: int, block: int) -> int:
        return epoch * self._blocks + (self._order(epoch).index(block) if epoch else block)

    def _order(self, epoch: int) -> Permutation:
        if epoch not in self._orders:
            if len(self._orders) >= 4:
                self._orders.clear()
            self._orders[epoch] = Permutation(self._blocks, self._seed, epoch)
        return self._orders[epoch]
