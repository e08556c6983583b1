"""The Triton kernels, in Triton's interpreter, do what the CPU does. Skipped where Triton is not installed."""

import math
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="the kernels need Triton, which torch brings along for CUDA alone")

from swarm.compute import adding, device_packing, fused, fused_norm, fused_packing, norm, packing, reduction
from swarm.compute.layout import Layout
from swarm.compute.reduction import Buckets, Reduction
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection
from tests.compute.two_replicas import ATTEMPT, crossed

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy stands in for the device


def test_a_gradient_is_rounded_and_added():
    assert adding.agrees(fused.add, CPU)


def test_all_gradients_of_a_microbatch_take_two_launches(monkeypatch):
    own = [Kernel(), Kernel()]
    monkeypatch.setattr(fused, "_find_peaks", own[0])
    monkeypatch.setattr(fused, "_add_rounded", own[1])
    peaks, room = torch.zeros(9), torch.full((9,), 1 << 31)
    given = [
        adding.Given(place, torch.zeros(5000, dtype=torch.int32), torch.ones(5000, dtype=kind))
        for place, kind in enumerate([torch.float32, torch.bfloat16, torch.float16] * 3)
    ]
    fused.add(given, peaks, room, 1.0, 2.0)
    assert [kernel.launches for kernel in own] == [1, 1]
    assert own[0].grid == own[1].grid == (9 * 2,)


def test_sums_are_packed_and_read():
    assert device_packing.agree(fused_packing, CPU)


def test_squares_are_added_up():
    assert norm.agrees(fused_norm.lanes, CPU)


@pytest.mark.parametrize(
    ("grid_bits", "height"), [(20, 1.0), (24, math.nan), (24, 300.0), (30, 1e-6), (30, 300.0)]
)  # with the last, some sums are int64
def test_a_reduce_on_the_device_sends_and_leaves_what_one_on_the_cpu_does(monkeypatch, height, grid_bits):
    monkeypatch.setattr(reduction, "BUCKET_ELEMENTS", 512)
    monkeypatch.setattr(device_packing, "GROUP", 2)
    layout = Layout.of({"a": torch.empty(31, 50), "b": torch.empty(70)}, with_loss=True)
    sums = SumSection(grid_bits=grid_bits)
    generator = torch.Generator().manual_seed(4)
    gradients = [[torch.randn(shape, generator=generator) for shape in layout.shapes] for _ in range(2)]
    gradients[1][1][3] = height
    gradients[0][0][:7] *= height if math.isfinite(height) else 1.0
    shares = [Accumulator(layout, sums) for _ in range(2)]
    for share, each in zip(shares, gradients, strict=True):
        share.add(each, 2.0)
    found = []
    for kernels, coming in ((None, False), (fused_packing, False), (fused_packing, True)):
        monkeypatch.setattr(device_packing, "kernels", lambda device, kernels=kernels: kernels)
        sent, one, other = crossed(shares, sums, coming)
        third = Reduction(shares[0], Buckets(layout, sums), sums)
        third.restore(ATTEMPT, written := [bytes(each) for each in one.written(ATTEMPT)])
        ended = [repr(replica.assemble(ATTEMPT)) for replica in (one, other, third)]  # as text NaN equals itself
        found.append((sent, written, *ended))
    assert found[0] == found[1] == found[2]
    assert len(set(found[0][2:])) == 1
    assert ("finite=False" in found[0][2]) is not math.isfinite(height)


def test_more_buckets_take_as_many_launches(monkeypatch):
    own = {name: Kernel() for name in ("measure", "pack_columns", "unpack_columns")}
    for name, kernel in own.items():  # the interpreter would count too
        monkeypatch.setattr(fused_packing, name, kernel)
    counts = []
    for size in (2, 6):
        numbers = torch.arange(64 * size) * 1000
        places = [slice(start, start + 64) for start in range(0, 64 * size, 64)]
        payloads = [packing.pack(numbers[where].numpy(), 20) for where in places]
        fused_packing._known((64,) * size, CPU)  # those are made once
        with Launches() as launches:
            fused_packing.pack(numbers, places, 20)
            fused_packing.unpack(payloads, places, 20, torch.empty_like(numbers))
        counts.append(launches.count)
    assert counts[0] == counts[1] < 90
    assert [kernel.launches for kernel in own.values()] == [2, 2, 2]


class Kernel:
    def __init__(self) -> None:
        self.launches = 0
        self.grid: tuple[int, ...] = ()

    def __getitem__(self, grid):
        self.grid = grid

        def launch(*arguments, **options):
            self.launches += 1

        return launch


class Launches(TorchDispatchMode):
    """Counts torch's operations. Those that only look at a tensor otherwise count too."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **kwargs or {})
