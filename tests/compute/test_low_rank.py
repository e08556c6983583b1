"""Averaging in low rank: the arithmetic bit by bit, two rounds in their order, and what is left out comes back."""

import math

import pytest
import torch

from swarm.codecs.codec import HEADER_BYTES
from swarm.compute import low_rank_reduction, reduction
from swarm.compute.averaging import buckets_of, largest_bucket
from swarm.compute.body import FrameError
from swarm.compute.layout import Layout
from swarm.compute.low_rank import LowRank, orthonormal, product
from swarm.compute.low_rank_reduction import LowRankReduction
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import EncodePart, SumBucket

SHAPES = {"embed": (50, 32), "norm": (32,), "kernel": (16, 4, 3, 3), "small": (2, 3)}
LAYOUT = Layout.of({name: torch.empty(shape) for name, shape in SHAPES.items()}, with_loss=True)
BUCKET = 64


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (low_rank_reduction, reduction):
        monkeypatch.setattr(module, "BUCKET_ELEMENTS", BUCKET)


def attempt(step: int, number: int = 0) -> Attempt:
    return Attempt(PassId(Term(1), StepNumber(step)), StageIndex(0), number)


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class Pair:
    """Two replicas; bucket b is reduced by number b mod 2."""

    def __init__(self, rank: int = 2) -> None:
        sums = SumSection(averaging=f"powersgd:{rank}")
        self.shares = [Accumulator(LAYOUT, sums) for _ in range(2)]
        self.replicas = [LowRankReduction(share, sums) for share in self.shares]
        self.buckets = buckets_of(LAYOUT, sums)
        self.sums: list[bytes] = []
        """What was sent of each bucket, in the last attempt."""

    def reduce(self, at: Attempt, given: list[list[torch.Tensor]], carried: bool) -> torch.Tensor:
        for share, tensors in zip(self.shares, given, strict=True):
            share.zero()
            share.add(tensors, 2.0)
        self.sums = []
        rounds = (range(self.buckets.first_round), range(self.buckets.first_round, self.buckets.count))
        for bucket in (bucket for each in rounds for bucket in each):
            owner, other = self.replicas[bucket % 2], self.replicas[1 - bucket % 2]
            part = other.part(EncodePart(at, bucket, carried, warm=carried))
            self.buckets.check(bucket, part)
            total = owner.sum(SumBucket(at, bucket, (bytearray(part),), bucket % 2, carried, warm=carried))
            self.sums.append(bytes(total))
            for replica in self.replicas:
                replica.store(at, bucket, self.sums[bucket])
        one, other = (replica.assemble(at) for replica in self.replicas)
        assert one.digest == other.digest, "equal bytes"
        assert one.loss_sum == 4.0, "the loss is exact"
        return self.replicas[0].reduced(at)[:-1].clone()

    def applied(self, at: Attempt) -> None:
        for replica in self.replicas:
            replica.applied(at, skipped=False)


def test_what_the_next_donor_sends_replaces_what_was_wrong() -> None:
    """Who catches up over a step stores its sums again, under the same attempt, if they were not those decided."""
    wrong, right, listener = Pair(), Pair(), Pair().replicas[0]
    wrong.reduce(attempt(0), [gradients(1), gradients(2)], False)
    right.reduce(attempt(0), [gradients(3), gradients(4)], False)
    for given in (wrong, right):
        for bucket, payload in enumerate(given.sums):
            listener.store(attempt(0), bucket, payload)
        assert listener.assemble(attempt(0)) == given.replicas[0].assemble(attempt(0))


def test_what_a_low_rank_does_not_make_smaller_stays_whole() -> None:
    ranks = LowRank(LAYOUT, 2)
    assert [(m.name, m.rows, m.columns) for m in ranks.matrices] == [("embed", 50, 32), ("kernel", 16, 36)]
    assert ranks.first == 2 * (50 + 16) and ranks.second == 2 * (32 + 36) + 32 + 6
    assert not LowRank(LAYOUT, 40).matrices
    assert largest_bucket(SumSection(averaging="powersgd:2")) == 9 + HEADER_BYTES + 4 * (1 << 18)


def test_columns_become_orthonormal_and_dependent_ones_zero() -> None:
    left = torch.randn(300, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-20, 1.0, 1e10, 1.0])
    left[:, 3] = left[:, 1] - 2 * left[:, 0]
    found = orthonormal(left)
    assert torch.allclose(found[:, :3].T @ found[:, :3], torch.eye(3), atol=1e-6)
    assert torch.equal(orthonormal(torch.zeros(5, 2)), torch.zeros(5, 2))
    dependent = torch.stack([left[:, 1], 4 * left[:, 1]], dim=1)
    assert torch.equal(orthonormal(dependent)[:, 1], torch.zeros(300))


def test_neither_threads_nor_places_in_memory_decide_a_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    left, right = torch.randn(70_000, 3, generator=generator), torch.randn(40, 3, generator=generator)
    shifted = torch.empty(70_001 * 3)[3:].view(70_000, 3).copy_(left)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found += [(orthonormal(each), product(each, right)) for each in (left, shifted)]
    finally:
        torch.set_num_threads(before)
    for columns, matrix in found[1:]:
        assert torch.equal(columns, found[0][0]) and torch.equal(matrix, found[0][1])
    assert torch.allclose(found[0][1], left @ right.T, atol=1e-5)


def test_sums_of_low_rank_cross_as_they_are() -> None:
    one, two = (torch.outer(torch.randn(50), torch.randn(32)) for _ in range(2))
    given = [[m, torch.ones(32), torch.zeros(16, 4, 3, 3), torch.ones(2, 3)] for m in (one, two)]
    assert torch.allclose(
        Pair().reduce(attempt(0), given, carried=False).float(), flat(given[0]) + flat(given[1]), atol=1e-4
    )


def test_what_the_rank_leaves_out_comes_back() -> None:
    pair, applied, true, errors = Pair(), 0.0, 0.0, []
    for step in range(40):
        given = [gradients(0), gradients(1)]  # the same in each step: in the end all of it must have come
        applied = applied + pair.reduce(attempt(step), given, carried=step > 0).float()
        true = true + flat(given[0]) + flat(given[1])
        errors.append(((applied - true).norm() / (step + 1)).item())
        pair.applied(attempt(step))
    assert errors[-1] < 0.35 * errors[0]


def test_a_void_attempt_leaves_nothing() -> None:
    first, second = Pair(), Pair()
    for pair in (first, second):
        pair.reduce(attempt(0), [gradients(0), gradients(1)], carried=False)
        pair.applied(attempt(0))
    first.reduce(attempt(1, 0), [gradients(7), gradients(8)], carried=True)
    for replica in first.replicas:
        replica.cancel(attempt(1, 0))
    given = [gradients(2), gradients(3)]
    again = first.reduce(attempt(1, 1), given, carried=True)
    assert torch.equal(again, second.reduce(attempt(1, 0), given, carried=True))
    assert not torch.equal(again, second.reduce(attempt(1, 1), given, carried=False))


def test_the_second_round_waits_for_the_first() -> None:
    pair = Pair()
    replica, second = pair.replicas[0], pair.buckets.first_round
    with pytest.raises(ValueError, match=r"the second round of .* starts before the first is stored"):
        replica.part(EncodePart(attempt(0), second))
    replica.store(attempt(0), 0, replica.part(EncodePart(attempt(0), 0)))
    with pytest.raises(ValueError, match=f"round starts while {second - 1} buckets of the first are missing"):
        replica.part(EncodePart(attempt(0), second))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_seen_by_everybody(value: float) -> None:
    pair = Pair()
    given = [gradients(0), gradients(1)]
    given[1][0][0, 0] = value
    pair.reduce(attempt(0), given, carried=False)
    assert not any(replica.assemble(attempt(0)).finite for replica in pair.replicas)


def test_one_replica_keeps_its_exact_sums() -> None:
    pair = Pair()
    share, alone = pair.shares[0], pair.replicas[0]
    share.add(gradients(0), 2.0)
    for bucket in range(pair.buckets.count):
        alone.store(attempt(0), bucket, alone.sum(SumBucket(attempt(0), bucket, ())))
    assert torch.equal(alone.reduced(attempt(0)), share.flat)


def test_residuals_that_are_not_here_are_missed() -> None:
    with pytest.raises(LookupError, match="the residuals for version 1 are missing"):
        Pair().replicas[0].part(EncodePart(attempt(1), 0, carried=True))


def test_a_payload_that_cannot_be_the_bucket_is_refused() -> None:
    buckets = Pair().buckets
    last = buckets.count - 1
    for bucket in (-1, buckets.count):
        with pytest.raises(FrameError, match=f"bucket {bucket} does not exist: the stage has {buckets.count}"):
            buckets.check(bucket, b"\1")
    with pytest.raises(FrameError, match="bucket 0: truncated"):
        buckets.check(0, b"\0")
    with pytest.raises(FrameError, match=rf"bucket {last} has 1 bytes, expected at least 9"):
        buckets.check(last, b"\0")
    numbers = sum(buckets.slice(b).stop - buckets.slice(b).start for b in range(buckets.count))
    assert numbers == LowRank(LAYOUT, 2).first + LowRank(LAYOUT, 2).second + 1
