"""In which groups a device packs, adds up and reads buckets. What its kernels compute: test_fused.py."""

import pytest
import torch

from swarm.compute import device_packing, reduction
from swarm.compute.body import FrameError
from swarm.compute.grid import SumOverflow
from swarm.compute.layout import Layout
from swarm.compute.reduction import Buckets, Reduction
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import EncodePart, SumBucket
from tests.compute.twin_kernels import TwinKernels
from tests.compute.two_replicas import ATTEMPT, crossed

CPU = torch.device("cpu")


def test_the_stand_in_is_right():
    assert device_packing.agree(TwinKernels(), CPU)


@pytest.mark.parametrize("coming", [False, True])
def test_a_reduce_in_groups_sends_and_leaves_what_one_on_the_cpu_does(monkeypatch, coming):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 512)
    monkeypatch.setattr(device_packing, "GROUP", 2)
    layout = Layout.of({"a": torch.empty(31, 50), "b": torch.empty(70)}, with_loss=True)
    sums, generator = SumSection(), torch.Generator().manual_seed(4)
    shares = [Accumulator(layout, sums) for _ in range(2)]
    for share in shares:
        share.add([torch.randn(shape, generator=generator) for shape in layout.shapes], 2.0)
    found = []
    for kernels in (None, TwinKernels()):
        monkeypatch.setattr(device_packing, "kernels", lambda device, kernels=kernels: kernels)
        sent, one, other = crossed(shares, sums, coming)
        written = [bytes(each) for each in one.written(ATTEMPT)]
        found.append((sent, written, one.assemble(ATTEMPT), other.assemble(ATTEMPT)))
    assert found[0] == found[1]


def test_what_is_known_to_come_is_done_in_groups(monkeypatch):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 64)
    monkeypatch.setattr(device_packing, "GROUP", 8)
    monkeypatch.setattr(device_packing, "kernels", lambda device: counted)
    layout, sums = Layout.of({"a": torch.empty(64 * 20)}, with_loss=False), SumSection()
    shares = [Accumulator(layout, sums) for _ in range(2)]
    counted = TwinKernels()
    _, one, other = crossed(shares, sums, coming=True)
    for replica in (one, other):
        replica.assemble(ATTEMPT)
    parts = totals = [8, 8, 4]
    stored = [8, 8, 4]  # by the other; the one has them already
    assert counted.packed == parts + totals
    assert counted.read == totals + stored


def test_a_bucket_that_is_summed_too_large_is_told_in_its_turn(monkeypatch):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 64)
    layout, sums = Layout.of({"a": torch.empty(64 * 2)}, with_loss=False), SumSection(grid_bits=30)
    shares = [Accumulator(layout, sums) for _ in range(2)]
    for share in shares:
        for _ in range(3):
            share.add([torch.cat((torch.zeros(64), torch.full((64,), 2.0**21)))])
    for kernels in (None, TwinKernels()):
        monkeypatch.setattr(device_packing, "kernels", lambda device, kernels=kernels: kernels)
        one, other = (Reduction(share, Buckets(layout, sums), sums) for share in shares)
        orders = [SumBucket(ATTEMPT, b, (bytes(other.part(EncodePart(ATTEMPT, b))),)) for b in range(2)]
        one.coming = lambda orders=orders: tuple(orders)
        assert bytes(one.sum(orders[0])) == bytes(1)
        with pytest.raises(SumOverflow, match=r"the sum over replicas reaches 1.25829e\+07; with sums.grid_bits"):
            one.sum(orders[1])


def test_sums_that_are_put_aside_are_those_of_the_last_donor(monkeypatch):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 64)
    monkeypatch.setattr(device_packing, "kernels", lambda device: TwinKernels())
    layout, sums = Layout.of({"a": torch.empty(100)}, with_loss=False), SumSection()
    shares = [Accumulator(layout, sums) for _ in range(2)]
    for value, share in enumerate(shares, 1):
        share.add([torch.full((100,), float(value))])
    replica = Reduction(shares[0], buckets := Buckets(layout, sums), sums)
    for share in shares:
        for bucket in range(2):
            replica.store(ATTEMPT, bucket, buckets.write(share.numbers(buckets.slice(bucket))))
    assert torch.equal(replica.reduced(ATTEMPT), shares[1].numbers(slice(0, 100)))


def test_own_sums_are_packed_anew_when_they_have_changed(monkeypatch):
    monkeypatch.setattr(device_packing, "kernels", lambda device: TwinKernels())
    layout, sums = Layout.of({"a": torch.empty(65)}, with_loss=False), SumSection(grid_bits=8)
    share = Accumulator(layout, sums)
    replica = Reduction(share, Buckets(layout, sums), sums)
    before = bytes(replica.part(EncodePart(ATTEMPT, 0)))
    share.add([torch.ones(65)])
    after = bytes(replica.part(EncodePart(ATTEMPT, 0)))
    assert before == bytes(2) and after == bytes(Buckets(layout, sums).write(share.numbers(slice(0, 65))))


def test_what_was_added_up_ahead_of_its_turn_is_void_in_another_attempt(monkeypatch):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 64)
    monkeypatch.setattr(device_packing, "kernels", lambda device: counted)
    counted, sums = TwinKernels(), SumSection()
    layout = Layout.of({"a": torch.empty(128)}, with_loss=False)
    share = Accumulator(layout, sums)
    share.add([torch.ones(128)])
    replica = Reduction(share, buckets := Buckets(layout, sums), sums)
    part = bytes(buckets.write(share.numbers(slice(0, 64))))
    later = Attempt(ATTEMPT.pass_id, ATTEMPT.stage, 1)
    for attempt in (ATTEMPT, later):
        orders = [SumBucket(attempt, bucket, (part,)) for bucket in range(2)]
        replica.coming = lambda orders=orders: tuple(orders)
        replica.sum(orders[0])
    share.add([torch.ones(128)])
    expected = buckets.write(3 * share.numbers(slice(0, 64)) // 2)  # own sums have grown
    assert bytes(replica.sum(orders[1])) == expected
    assert counted.packed == [2, 2, 2]


def test_a_part_that_cannot_be_used_is_told_in_its_turn(monkeypatch):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 64)
    monkeypatch.setattr(device_packing, "kernels", lambda device: TwinKernels())
    layout, sums = Layout.of({"a": torch.empty(128)}, with_loss=False), SumSection()
    replica = Reduction(Accumulator(layout, sums), Buckets(layout, sums), sums)
    orders = [SumBucket(ATTEMPT, 0, (bytes(1),)), SumBucket(ATTEMPT, 1, (bytes(2),))]
    replica.coming = lambda: tuple(orders)
    assert bytes(replica.sum(orders[0])) == bytes(1)
    with pytest.raises(FrameError, match="bucket 1: packed numbers have 2 bytes"):
        replica.sum(orders[1])
