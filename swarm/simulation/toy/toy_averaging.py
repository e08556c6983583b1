"""Compressed averaging in the toy model: the same rule as in swarm/compute/averaging.py, on integers.

Compression rounds down to a multiple of GRAIN, so residuals are small integers, and a wrong or missing residual changes
the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swarm.protocol.messages import Contribution

GRAIN = 1009
"""The grain of the compression. It is odd, so that a residual also changes the bits that count microbatches."""


@dataclass(frozen=True, slots=True)
class Left:
    """The residuals of one step of one stage: of shares, by member and bucket, and of sums, by bucket."""

    shares: Sequence[Mapping[int, int]]
    sums: Mapping[int, int]


NOTHING = Left((), {})


def compressed(value: int) -> tuple[int, int]:
    """Return (compressed value, error)."""
    lost = value % GRAIN
    return value - lost, lost


def averaged(
    gradients: Sequence[int],
    contributions: Sequence[Contribution],
    before: Left,
    buckets: int,
    share_of: Callable[[int, int], int],
) -> tuple[tuple[int, ...], Left]:
    """Return (sums by bucket, residuals) of a step. `gradients`: by microbatch. `share_of`: the bucket of a
    gradient.
    """
    totals = [sum(g for m, g in enumerate(gradients) if each.microbatches >> m & 1) for each in contributions]
    if len(totals) == 1:
        return tuple(share_of(totals[0], bucket) for bucket in range(buckets)), Left(({},), {})
    left = Left([{} for _ in totals], {})
    sums = []
    for bucket in range(buckets):
        total = 0
        for total_of, each, lost in zip(totals, contributions, left.shares, strict=True):
            old = before.shares[each.carried].get(bucket, 0) if each.carried >= 0 else 0
            crossed, lost[bucket] = compressed(share_of(total_of, bucket) + old)  # type: ignore[index]
            total += crossed
        reducer = contributions[bucket % len(contributions)].carried
        if reducer >= 0 and bucket % len(before.shares) == reducer:
            total += before.sums.get(bucket, 0)
        crossed, left.sums[bucket] = compressed(total)  # type: ignore[index]
        sums.append(crossed)
    return tuple(sums), left
