"""Two replicas of a stage in one process, which reduce their sums in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.workload import ATTEMPT
from swarm.buffer import Buffer
from swarm.compute import adding, device_packing, norm
from swarm.compute.averaging import buckets_of, reduction_of
from swarm.compute.reduction import Reduction
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import EncodePart, SumBucket

WAVE = 128
"""Buckets that two replicas order at a time."""

T = TypeVar("T")
Order = TypeVar("Order", EncodePart, SumBucket)


class Timed(Protocol):
    """Does a replica's order and returns what comes of it."""

    def __call__(self, replica: int, run: Callable[[], T], /) -> T: ...


class Replicas:
    """Two replicas that reduce in turn, in one process: each bucket is one's to sum."""

    def __init__(self, accumulators: Sequence[Accumulator], sums: SumSection) -> None:
        self.reductions = [reduction_of(accumulator, sums) for accumulator in accumulators]
        self.exact = not sums.compresses
        self._buckets = buckets_of(accumulators[0].layout, sums)

    def run(self, timed: Timed, attempt: Attempt = ATTEMPT) -> list[Buffer]:
        """All parts and sums. WAVE buckets are ordered at a time, as where the link is quicker than the replicas."""
        crossed: list[Buffer] = []
        first, count = self._buckets.first_round, self._buckets.count
        for buckets in (range(first), range(first, count)):
            for start in range(0, len(buckets), WAVE):
                crossed += self._wave(buckets[start : start + WAVE], timed, attempt)
        return crossed

    def _wave(self, buckets: Sequence[int], timed: Timed, attempt: Attempt) -> list[Buffer]:
        parts, sums = dict[int, Buffer](), dict[int, Buffer]()
        for replica, reduction in enumerate(self.reductions):
            orders = [EncodePart(attempt, bucket) for bucket in buckets if bucket % 2 != replica]
            for order in self._in_turn(reduction, orders):
                parts[order.bucket] = timed(replica, partial(reduction.part, order))
        for replica, reduction in enumerate(self.reductions):
            totals = [
                SumBucket(attempt, bucket, (parts[bucket],), int(replica == 1))
                for bucket in buckets
                if bucket % 2 == replica
            ]
            for total in self._in_turn(reduction, totals):
                sums[total.bucket] = timed(replica, partial(reduction.sum, total))
        for bucket in buckets:
            for replica, reduction in enumerate(self.reductions):
                timed(replica, partial(reduction.store, attempt, bucket, sums[bucket]))
        return [each for bucket in buckets for each in (parts[bucket], sums[bucket])]

    @staticmethod
    def _in_turn(reduction: Reduction, orders: list[Order]) -> Iterator[Order]:
        """Each of them, while the reduction knows those that follow."""
        left = deque(orders)
        reduction.coming = lambda: tuple(left)
        while left:
            yield left.popleft()


def kernels_of(lab: Lab) -> dict[str, bool]:
    """Which jobs Triton kernels do; the log says why they do not do the others."""
    return {
        "add": adding.adder(lab.device) is not adding.plain,
        "pack": device_packing.kernels(lab.device) is not None,
        "norm": norm.kernel(lab.device) is not None,
    }
