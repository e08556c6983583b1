"""Chooses which replica of a stage sums each bucket of its gradients. Replicas with slower links sum fewer buckets.

A replica sends its own part of each bucket to the replica that sums this bucket. A replica that sums a bucket sends the
result to all others. With `B` buckets and `R` replicas, a replica that sums `n` buckets sends B + n·(R − 2) buckets in
all: about 2·B with equal shares, B if it sums none. So a replica with a slow link sums no buckets, if the others' links
allow it, and the reduction takes half as long. (With two replicas, each sends the same amount, however many buckets it
sums.)

This is possible only for exact sums, whose bytes do not depend on the replica that sums. Compressed sums leave a
residual at the replica that sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heapreplace
from statistics import median

EVEN = 1.25
"""Links whose rates differ by at most this factor count as equal."""
FASTEST = 4.0
"""Upper bound of a link rate, as a multiple of the median. A peer that offers far more than it has would sum all
buckets, and the others would wait for it. With up to five replicas, an honest peer loses nothing: it sums all buckets
of equal siblings at this rate already.
"""
UNIT = 1000.0
"""Unit of link rates in a table, bytes/s."""


def lines_of(rates: Sequence[float]) -> tuple[int, ...]:
    """The link rates of the members for a table, in kB/s. Empty if all rates are nearly equal or do not matter.

    `rates`: bytes/s that each member can send and receive. An unknown rate is infinite, and counts as the median. A
    rate counts up to a multiple of the median, because nobody has checked it.
    """
    known = [rate for rate in rates if math.isfinite(rate)]
    if len(rates) < 3 or not known:
        return ()
    usual = median(known)
    rates = [min(rate, FASTEST * usual) if math.isfinite(rate) else usual for rate in rates]
    if max(rates) <= EVEN * min(rates):
        return ()
    return tuple(max(1, round(rate / UNIT)) for rate in rates)


def owners(lines: Sequence[int], members: int, buckets: int) -> list[int]:
    """The index of the member that sums each bucket. All actors compute the same result.

    With equal links, members take turns. Otherwise each bucket goes to the member that would finish first, and the
    buckets of one member are spread over all buckets.
    """
    if not lines:
        return [bucket % members for bucket in range(buckets)]
    counts, each = [0] * members, max(1, members - 2)
    ends = [((buckets + each) / line, i) for i, line in enumerate(lines)]
    heapify(ends)
    for _ in range(buckets):
        _, i = ends[0]
        counts[i] += 1
        heapreplace(ends, ((buckets + (counts[i] + 1) * each) / lines[i], i))
    turns = sorted(((k + 0.5) / count, i) for i, count in enumerate(counts) for k in range(count))
    return [i for _, i in turns]
