"""Who of a stage sums how much of its gradients: the less, the slower its line is.

A replica sends its own part of every bucket that another one sums, once, and of each that it sums itself the sum to all
the others. Of `B` buckets among `R` replicas, `n` of them its own, that is B + n·(R − 2): about 2·B with equal shares,
B with none. So who has a slow line sums nothing, if the others' lines allow it, and the reduce takes half as long. (Of
two replicas each sends the same, however many it sums.)

Only where sums are exact: there the bytes do not depend on who sums. Compressed ones leave a residual where they are
summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heapreplace
from statistics import median

EVEN = 1.25
"""Lines that differ by no more than this factor count as equal."""
UNIT = 1000.0
"""Bytes a second, in which a table names lines."""


def lines_of(rates: Sequence[float]) -> tuple[int, ...]:
    """What a table says of its members' lines, kB a second. Empty: they are equal, or it does not matter.

    `rates`: bytes a second that each can send and receive; infinite if that is not known, which counts as the median.
    """
    known = [rate for rate in rates if math.isfinite(rate)]
    if len(rates) < 3 or not known:
        return ()
    usual = median(known)
    rates = [rate if math.isfinite(rate) else usual for rate in rates]
    if max(rates) <= EVEN * min(rates):
        return ()
    return tuple(max(1, round(rate / UNIT)) for rate in rates)


def owners(lines: Sequence[int], members: int, buckets: int) -> list[int]:
    """Which of so many members sums each bucket. The same everywhere.

    In turn, where lines are equal. Else each bucket goes to whom it lets finish first, and who has several has them
    spread over all.
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
