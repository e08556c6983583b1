"""Compressed averaging of one stage: what is lost comes back, payloads are checked, void attempts leave nothing."""

import math
import struct

import pytest
import torch

from swarm import codecs
from swarm.compute.averaging import buckets_of, largest_bucket
from swarm.compute.body import FrameError
from swarm.compute.coded import CodedReduction
from swarm.compute.layout import Layout
from swarm.compute.reduction import BUCKET_ELEMENTS
from swarm.compute.sums import Accumulator, SumOverflow
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import EncodePart, SumBucket

COUNT = BUCKET_ELEMENTS + 100
LAYOUT = Layout.of({"w": torch.empty(COUNT)}, with_loss=True)
CODECS = ["int8", "int6", "int5", "int4", "int2", "bf16", "topk:0.1"]


def attempt(step: int, number: int = 0) -> Attempt:
    return Attempt(PassId(Term(1), StepNumber(step)), StageIndex(0), number)


class Pair:
    """Two replicas: bucket 0 is reduced by the first, bucket 1 by the second."""

    def __init__(self, codec: str) -> None:
        sums = SumSection(averaging=codec)
        self.shares = [Accumulator(LAYOUT, sums) for _ in range(2)]
        self.replicas = [CodedReduction(share, sums) for share in self.shares]
        self.buckets = buckets_of(LAYOUT, sums)
        self.largest = largest_bucket(sums)

    def reduce(self, at: Attempt, gradients: list[torch.Tensor], carried: bool) -> torch.Tensor:
        for share, gradient in zip(self.shares, gradients, strict=True):
            share.zero()
            share.add([gradient], 2.0)
        for bucket in range(2):
            owner, other = self.replicas[bucket], self.replicas[1 - bucket]
            part = other.part(EncodePart(at, bucket, carried))
            self.buckets.check(bucket, part)
            total = owner.sum(SumBucket(at, bucket, (bytearray(part),), place=bucket, carried=carried))
            self.buckets.check(bucket, total)
            assert max(len(part), len(total)) <= self.largest
            for replica in self.replicas:
                replica.store(at, bucket, bytes(total))
        one, other = (replica.assemble(at) for replica in self.replicas)
        assert one.digest == other.digest, "equal bytes"
        assert math.isnan(one.loss_sum) or one.loss_sum == 4.0, "the loss is exact"
        return self.replicas[0].reduced(at)[:COUNT].clone()

    def applied(self, at: Attempt, skipped: bool = False) -> None:
        for replica in self.replicas:
            replica.applied(at, skipped=skipped)


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(COUNT, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_lost_comes_back(codec: str) -> None:
    """Over some steps the applied sums add up to the true ones, but for what the last step has lost."""
    pair, applied, true, errors = Pair(codec), torch.zeros(COUNT), torch.zeros(COUNT), []
    for step in range(12):
        given = gradients(step)
        applied += pair.reduce(attempt(step), given, carried=step > 0)
        true += sum(given)
        errors.append((applied - true).norm().item())
        pair.applied(attempt(step))
    if codec != "topk:0.1":  # which keeps little: its residuals need longer to settle
        assert errors[-1] < 2 * errors[0]
    assert errors[-1] < 0.75 * len(errors) * errors[0], "without residuals errors would add up"


def test_a_void_attempt_leaves_nothing() -> None:
    """The one after it computes from the same residuals again, whatever it was that was cancelled."""
    first, second = Pair("int4"), Pair("int4")
    for pair in (first, second):
        pair.reduce(attempt(0), gradients(0), carried=False)
        pair.applied(attempt(0))
    first.reduce(attempt(1, 0), gradients(7), carried=True)
    for replica in first.replicas:
        replica.cancel(attempt(1, 0))
    assert torch.equal(
        first.reduce(attempt(1, 1), gradients(1), carried=True), second.reduce(attempt(1), gradients(1), carried=True)
    )


def test_residuals_count_only_when_they_are_granted() -> None:
    first, second = Pair("int4"), Pair("int4")
    first.reduce(attempt(0), gradients(0), carried=False)
    first.applied(attempt(0))
    granted = first.reduce(attempt(1), gradients(1), carried=True)
    empty = first.reduce(attempt(1, 1), gradients(1), carried=False)
    assert torch.equal(empty, second.reduce(attempt(1), gradients(1), carried=False))
    assert not torch.equal(empty, granted)


def test_residuals_that_are_not_here_are_missed() -> None:
    pair = Pair("int4")
    with pytest.raises(LookupError, match="the residuals for version 1 are missing; those for None are here"):
        pair.replicas[0].part(EncodePart(attempt(1), 0, carried=True))
    pair.reduce(attempt(0), gradients(0), carried=False)
    pair.applied(attempt(0))
    pair.replicas[0].forget()
    with pytest.raises(LookupError, match="the residuals for version"):
        pair.reduce(attempt(1), gradients(1), carried=True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_nan_for_everybody_and_its_step_leaves_nothing(value: float) -> None:
    pair = Pair("int4")
    given = gradients(0)
    given[1][0] = value
    reduced = pair.reduce(attempt(0), given, carried=False)
    assert reduced.isnan().all(), "all of the tensor"
    assert not pair.replicas[0].assemble(attempt(0)).finite
    pair.applied(attempt(0), skipped=True)
    after = pair.reduce(attempt(1), gradients(1), carried=True)
    assert torch.equal(after, Pair("int4").reduce(attempt(1), gradients(1), carried=False)), "all are empty"


def test_a_loss_that_is_not_finite_is_seen_too() -> None:
    pair = Pair("int8")
    pair.reduce(attempt(0), gradients(0), carried=False)
    pair.shares[0].add_loss(math.inf)
    part = pair.replicas[0].part(EncodePart(attempt(0, 1), 1))
    pair.buckets.check(1, part)
    assert struct.unpack_from("<d", part, 1)[0] != struct.unpack_from("<d", part, 1)[0]


def test_one_replica_keeps_its_exact_sums() -> None:
    pair = Pair("int4")
    share, alone = pair.shares[0], pair.replicas[0]
    share.add([gradients(0)[0]], 2.0)
    for bucket in range(2):
        alone.store(attempt(0), bucket, alone.sum(SumBucket(attempt(0), bucket, ())))
    assert torch.equal(alone.reduced(attempt(0)), share.flat)


def test_a_share_beyond_the_grid_is_refused_where_it_is_made() -> None:
    pair = Pair("int8")
    pair.shares[0]._widen(0)
    pair.shares[0]._sums[0][0] = 1 << 54  # 2^24
    with pytest.raises(SumOverflow, match=r"bucket 0 .* reaches .* the grid's limit is 8.38861e\+06: lower"):
        pair.replicas[0].part(EncodePart(attempt(0), 0))


FRAME = codecs.get("int4").encode(torch.ones(100))
LOSS = struct.pack("<d", 1.0)


@pytest.mark.parametrize(
    ("bucket", "payload", "reason"),
    [
        (2, b"", "bucket 2 does not exist: the stage has 2"),
        (1, 17, "bucket 1 is of type int, expected bytes"),
        (1, b"\0", "bucket 1 has 1 bytes, expected at least 9"),
        (0, b"", "bucket 0 has 0 bytes, expected at least 1"),
        (1, b"\2" + LOSS + FRAME, "bucket 1 is of kind 2 and has a frame of"),
        (1, b"\1" + LOSS + FRAME, "bucket 1 is of kind 1 and has a frame of"),
        (1, b"\0" + LOSS, "bucket 1: truncated"),
        (1, b"\0" + LOSS + FRAME[:-1], "bucket 1: bad checksum"),
        (1, b"\0" + LOSS + FRAME[:40] + b"\x55" + FRAME[41:], "bucket 1: bad checksum"),
        (1, b"\0" + LOSS + codecs.get("int8").encode(torch.ones(100)), "bucket 1: wrong codec"),
        (1, b"\0" + LOSS + codecs.get("int4").encode(torch.ones(101)), "bucket 1: wrong shape"),
        (
            1,
            b"\0" + LOSS + codecs.get("int4").encode(torch.full((100,), 1e7)),
            r"bucket 1 reaches .*; the limit of the grid is 8.38861e\+06",
        ),
        (1, b"\0" + struct.pack("<d", 1e7) + FRAME, r"bucket 1 has the loss 1e\+07; the limit of the grid is"),
    ],
)
def test_a_payload_that_cannot_be_the_bucket_is_refused(bucket: int, payload: object, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        buckets_of(LAYOUT, SumSection(averaging="int4")).check(bucket, payload)


def test_a_stage_whose_last_bucket_is_the_loss_alone() -> None:
    layout = Layout.of({"w": torch.empty(BUCKET_ELEMENTS)}, with_loss=True)
    sums = SumSection(averaging="int4")
    share = Accumulator(layout, sums)
    share.add([torch.ones(BUCKET_ELEMENTS)], 3.0)
    one, other = CodedReduction(share, sums), CodedReduction(share, sums)
    total = one.sum(SumBucket(attempt(0), 1, (other.part(EncodePart(attempt(0), 1)),), place=0))
    one.store(attempt(0), 0, one.sum(SumBucket(attempt(0), 0, (other.part(EncodePart(attempt(0), 0)),))))
    one.store(attempt(0), 1, total)
    assert one.assemble(attempt(0)).loss_sum == 6.0


@pytest.mark.parametrize(("place", "expected"), [(0, 0.0), (1, 0.0), (2, 1.0)])
def test_shares_are_added_in_the_order_of_the_roster(place: int, expected: float) -> None:
    layout, sums = Layout.of({"w": torch.empty(1)}, with_loss=False), SumSection(mode="fp32", averaging="bf16")
    parts = []
    for value in (2.0**60, -(2.0**60), 1.0):
        share = Accumulator(layout, sums)
        share.add([torch.tensor([value])])
        replica = CodedReduction(share, sums)
        parts.append(bytes(replica.part(EncodePart(attempt(0), 0))))
    total = replica.sum(SumBucket(attempt(0), 0, (parts[0], parts[1]), place=place))
    replica.store(attempt(0), 0, total)
    assert replica.reduced(attempt(0)).item() == expected
