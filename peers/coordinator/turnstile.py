"""Limits how many new devices an open run admits per time, in total and from one block of addresses.

An open run knows nobody in advance, so this is the only limit on how fast one person can bring in devices. The counts
are kept in memory and start again after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_ALL_AT_ONCE, IN_ALL_EVERY_S = 64, 10.0
OF_A_BLOCK_AT_ONCE, OF_A_BLOCK_EVERY_S = 8, 300.0
MOST_BLOCKS = 4096


@dataclass(slots=True)
class _Bucket:
    """A limit: `left` devices may be admitted at time `at`; one more after each `every_s`, up to `most`."""

    most: int
    every_s: float
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.most, self.left + (now - self.at) / self.every_s)
        self.at = now

    @property
    def wait_s(self) -> float:
        return max(0.0, (1 - self.left) * self.every_s)


class Turnstile:
    """The limits of one coordinator. `now` is in seconds of any clock that never goes back."""

    def __init__(self) -> None:
        self._all = _Bucket(IN_ALL_AT_ONCE, IN_ALL_EVERY_S, IN_ALL_AT_ONCE, 0.0)
        self._blocks: dict[str, _Bucket] = {}

    def wait_s(self, block: str, now: float) -> float:
        """Seconds until a new device of this block may be admitted. 0: it is admitted now, and counted."""
        own = self._blocks.pop(block, None) or _Bucket(OF_A_BLOCK_AT_ONCE, OF_A_BLOCK_EVERY_S, OF_A_BLOCK_AT_ONCE, now)
        self._blocks[block] = own  # moved to the end of the dict, as the latest block
        while len(self._blocks) > MOST_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        for bucket in (own, self._all):
            bucket.refill(now)
        wait = max(own.wait_s, self._all.wait_s)
        if wait == 0.0:
            own.left -= 1
            self._all.left -= 1
        return wait

    def give_back(self, block: str) -> None:
        """A device of this block that was counted is not admitted now; it will ask again."""
        for bucket in (self._blocks.get(block), self._all):
            if bucket is not None:
                bucket.left = min(bucket.most, bucket.left + 1)
