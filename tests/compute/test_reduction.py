import math

import numpy as np
import pytest
import torch

from swarm.compute.body import FrameError
from swarm.compute.digest import reduced_digest
from swarm.compute.layout import Layout
from swarm.compute.norm import squared_norm
from swarm.compute.reduction import BUCKET_ELEMENTS, Buckets, Reduction
from swarm.compute.sums import Accumulator
from swarm.compute.totals import combine, unit_of
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt, PassId
from swarm.protocol.peer.io import EncodePart, SumBucket

COUNT = 2 * BUCKET_ELEMENTS + 10
LAYOUT = Layout.of({"w": torch.empty(COUNT)}, with_loss=True)


def attempt(number: int) -> Attempt:
    return Attempt(PassId(0, 0), 0, number)


def replica(seed: int, sums: SumSection) -> tuple[Accumulator, Reduction]:
    share = Accumulator(LAYOUT, sums)
    share.add([torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))], 2.0)
    return share, Reduction(share, Buckets(LAYOUT, sums), sums)


def sum_alone(reduction: Reduction, of: Attempt, bucket: int) -> None:
    reduction.store(of, bucket, reduction.sum(SumBucket(of, bucket, ())))


@pytest.mark.parametrize("mode", ["exact", "fp32"])
def test_buckets_put_together_are_the_sum_of_the_replicas(mode):
    sums = SumSection(mode=mode)
    (a, ra), (b, rb) = replica(1, sums), replica(2, sums)
    buckets = Buckets(LAYOUT, sums)
    assert buckets.count == 3
    for bucket in range(3):
        part = rb.part(EncodePart(attempt(0), bucket))
        buckets.check(bucket, part)
        total = bytes(ra.sum(SumBucket(attempt(0), bucket, (bytearray(part),))))
        ra.store(attempt(0), bucket, total)
        rb.store(attempt(0), bucket, memoryview(b"\0" * 3 + total)[3:])  # as received: at any alignment
    whole = slice(0, LAYOUT.length)
    expected = combine(a.numbers(whole), [b.numbers(whole)], sums)
    found = ra.assemble(attempt(0))
    assert found == rb.assemble(attempt(0))
    assert found.digest == reduced_digest(expected)
    assert found.squared_norm == squared_norm(expected, LAYOUT, unit_of(expected.dtype, sums))
    assert (found.loss_sum, found.finite) == (4.0, True)


def test_a_missing_bucket_or_another_attempt_is_never_used():
    _, reduction = replica(1, SumSection())
    for bucket in range(2):
        sum_alone(reduction, attempt(0), bucket)
    with pytest.raises(ValueError, match="missing=1"):
        reduction.assemble(attempt(0))
    sum_alone(reduction, attempt(1), 2)  # a new attempt starts from nothing
    with pytest.raises(ValueError, match="missing=2"):
        reduction.assemble(attempt(1))
    with pytest.raises(ValueError, match="no reduced sums of attempt"):
        reduction.reduced(attempt(0))


def test_what_is_summed_counts_once_it_is_ordered_to_be_stored_in_the_same_attempt():
    _, reduction = replica(1, SumSection())
    for bucket in range(3):
        sum_alone(reduction, attempt(0), bucket)
    assert reduction.sum(SumBucket(attempt(0), 0, ())) == b"", "nobody else receives it"
    with pytest.raises(ValueError, match="missing=3"):
        reduction.reduced(attempt(0))  # what was complete is changed
    assert reduction.sum(SumBucket(attempt(1), 0, ())) == b""
    with pytest.raises(ValueError, match="missing=3"):
        reduction.assemble(attempt(1))
    with pytest.raises(FrameError, match="0 bytes"):
        reduction.store(attempt(2), 0, b"")
    reduction.cancel(attempt(1))
    with pytest.raises(FrameError, match="0 bytes"):
        reduction.store(attempt(1), 0, b"")


def test_sums_that_come_from_another_peer_replace_those_of_the_same_attempt():
    """Who catches up takes a donor's, and those of the next donor if these are not what was decided."""
    (_, own), (_, other) = replica(1, SumSection()), replica(2, SumSection())
    for reduction in (own, other):
        for bucket in range(3):
            sum_alone(reduction, attempt(0), bucket)
    assert own.assemble(attempt(0)).digest != other.assemble(attempt(0)).digest
    for bucket, payload in enumerate(other.written(attempt(0))):
        own.store(attempt(0), bucket, bytes(payload))
    assert own.assemble(attempt(0)) == other.assemble(attempt(0))


def test_a_cancelled_attempt_is_void_and_a_later_one_is_not():
    _, reduction = replica(1, SumSection())
    for bucket in range(3):
        sum_alone(reduction, attempt(1), bucket)
    reduction.cancel(attempt(0))
    assert reduction.assemble(attempt(1)).finite
    reduction.cancel(attempt(1))
    with pytest.raises(ValueError, match="no reduced sums of attempt"):
        reduction.reduced(attempt(1))


def test_sums_that_are_not_finite_are_reported():
    share, reduction = replica(1, SumSection())
    share.add([torch.full((COUNT,), math.nan)], 1.0)
    for bucket in range(3):
        sum_alone(reduction, attempt(0), bucket)
    assert not reduction.assemble(attempt(0)).finite


def test_the_reduced_buffer_is_separate_from_the_sums():
    share, reduction = replica(1, SumSection())
    for bucket in range(3):
        sum_alone(reduction, attempt(0), bucket)
    before = reduction.assemble(attempt(0))
    share.zero()
    assert reduction.assemble(attempt(0)) == before


@pytest.mark.parametrize(
    ("bucket", "payload", "reason"),
    [
        (3, b"", "bucket 3 does not exist: the stage has 3"),
        (-1, b"", "does not exist"),
        (2, b"", "bucket 2: packed numbers have 0 bytes, expected at least 1"),
        (2, bytes(2), "bucket 2: packed numbers have 2 bytes; their widths need 1"),
        (2, bytes([54]) + bytes(54 * 8), "bucket 2: packed numbers have a block of 54 bits per number"),
        (
            2,
            bytes([64]) + np.full(64, 1e7).tobytes(),
            r"bucket 2: packed numbers reach 1e\+07; the limit of the grid is 8.38861e\+06",
        ),
        (2, 17, "of type int"),
    ],
)
def test_a_payload_that_cannot_be_the_bucket_is_refused(bucket, payload, reason):
    with pytest.raises(FrameError, match=reason):
        Buckets(LAYOUT, SumSection()).check(bucket, payload)


@pytest.mark.parametrize("size", [0, 43, 45, 88])
def test_raw_sums_have_one_size(size):
    with pytest.raises(FrameError, match=f"bucket 2 has {size} bytes, expected 44"):
        Buckets(LAYOUT, SumSection(mode="fp32")).check(2, bytes(size))


@pytest.mark.parametrize("shared", [1, BUCKET_ELEMENTS, BUCKET_ELEMENTS + 1])
def test_what_is_shared_has_buckets_of_its_own_that_are_the_same_in_both_stages(shared):
    tensors = {"tied": torch.empty(shared), "own": torch.empty(BUCKET_ELEMENTS)}
    first = Buckets(Layout.of(tensors, with_loss=False, shared=1), SumSection())
    last = Buckets(Layout.of(tensors | {"more": torch.empty(9)}, with_loss=True, shared=1), SumSection())
    assert first.shared == last.shared == -(-shared // BUCKET_ELEMENTS)
    assert first.slice(first.shared - 1).stop == first.slice(first.shared).start == shared
    assert [first.slice(b) for b in range(first.shared)] == [last.slice(b) for b in range(last.shared)]
    for buckets, length in ((first, shared + BUCKET_ELEMENTS), (last, shared + BUCKET_ELEMENTS + 10)):
        covered = [i for b in range(buckets.count) for i in range(buckets.slice(b).start, buckets.slice(b).stop)]
        assert covered == list(range(length))


def test_what_is_shared_has_a_digest_of_its_own_and_counts_in_the_first_stage_only():
    found = []
    for own, with_loss in ((2.0, False), (4.0, True)):
        layout = Layout.of({"tied": torch.empty(3), "own": torch.empty(1)}, with_loss=with_loss, shared=1)
        share = Accumulator(layout, SumSection())
        share.add([torch.tensor([1.0, 2.0, 2.0]), torch.tensor([own])], 1.0 if with_loss else None)
        reduction = Reduction(share, Buckets(layout, SumSection()), SumSection())
        for bucket in range(2):
            sum_alone(reduction, attempt(0), bucket)
        found.append(reduction.assemble(attempt(0)))
    assert [f.squared_norm for f in found] == [9.0 + 4.0, 16.0]
    assert found[0].shared == found[1].shared == reduced_digest(torch.tensor([1 << 30, 2 << 30, 2 << 30]))
    assert found[0].digest != found[1].digest
