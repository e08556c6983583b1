"""The Triton kernels, in Triton's interpreter, do what the CPU does. Skipped where Triton is not installed."""

import os

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="the kernels need Triton, which torch brings along for CUDA alone")

from swarm.compute import adding, device_packing, fused, fused_norm, fused_packing, norm, reduction
from swarm.compute.reduction import Buckets, Reduction
from swarm.compute.sums import Accumulator, Layout
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import EncodePart, SumBucket

CPU = torch.device("cpu")
ATTEMPT = Attempt(PassId(Term(0), StepNumber(0)), StageIndex(0), 0)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy stands in for the device


def test_a_gradient_is_rounded_and_added():
    assert adding.agrees(fused.add, CPU)


def test_sums_are_packed_and_read():
    assert device_packing.agree(fused_packing, CPU)


def test_squares_are_added_up():
    assert norm.agrees(fused_norm.lanes, CPU)


@pytest.mark.parametrize("lost", [False, True])
def test_a_reduce_on_the_device_sends_and_leaves_what_one_on_the_cpu_does(monkeypatch, lost):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 512)
    monkeypatch.setattr(device_packing, "GROUP", 2)
    layout = Layout.of({"a": torch.empty(31, 50), "b": torch.empty(70)}, with_loss=True)
    sums = SumSection(grid_bits=24)
    generator = torch.Generator().manual_seed(4)
    gradients = [[torch.randn(shape, generator=generator) for shape in layout.shapes] for _ in range(2)]
    if lost:
        gradients[1][1][3] = torch.nan
    found = []
    for kernels in (None, fused_packing):
        monkeypatch.setattr(device_packing, "kernels", lambda device, kernels=kernels: kernels)
        shares = [Accumulator(layout, sums) for _ in range(2)]
        for share, each in zip(shares, gradients, strict=True):
            share.add(each, 2.0)
        one, other = (Reduction(share, Buckets(layout, sums), sums) for share in shares)
        crossed = []
        for bucket in range(Buckets(layout, sums).count):
            part = bytes(other.part(EncodePart(ATTEMPT, bucket)))
            total = bytes(one.sum(SumBucket(ATTEMPT, bucket, (part,))))
            for replica in (one, other):
                replica.store(ATTEMPT, bucket, total)
            crossed += [part, total]
        third = Reduction(shares[0], Buckets(layout, sums), sums)
        third.restore(ATTEMPT, written := one.written(ATTEMPT))
        ended = [repr(replica.assemble(ATTEMPT)) for replica in (one, other, third)]  # as text NaN equals itself
        found.append((crossed, written, *ended))
    assert found[0] == found[1]
    assert len(set(found[0][2:])) == 1
    assert ("finite=False" in found[0][2]) is lost


def test_own_sums_are_packed_anew_when_they_have_changed(monkeypatch):
    monkeypatch.setattr(device_packing, "kernels", lambda device: fused_packing)
    layout, sums = Layout.of({"a": torch.empty(65)}, with_loss=False), SumSection(grid_bits=8)
    share = Accumulator(layout, sums)
    replica = Reduction(share, Buckets(layout, sums), sums)
    before = bytes(replica.part(EncodePart(ATTEMPT, 0)))
    share.add([torch.ones(65)])
    after = bytes(replica.part(EncodePart(ATTEMPT, 0)))
    assert before == bytes(2) and after == bytes(Buckets(layout, sums).write(share.numbers(slice(0, 65))))
