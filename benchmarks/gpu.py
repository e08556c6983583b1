"""What a GPU does for a run today: whether it computes the bits that replicas must share, and where its time goes.

    python -m benchmarks.gpu [--device cuda] [--only exactness,memory] [--out FILE]
    python -m benchmarks.gpu --device cpu --smoke      # every part at a small size, where there is no GPU

Parts, in this order; each stands for itself, a failed one is told and the next one begins:

* ceilings: bandwidth of a copy on the device and to the host, rate of a bf16 matrix product.
* exactness: what every replica computes for itself, on the device and on the CPU, by its digest.
* gradients: a stage's against those in fp64 on the CPU; the same ones twice; kept graphs against computed ones.
* memory: bytes a parameter by phase, beside what the coordinator plans with.
* reduce: nanoseconds a parameter from the last backward to the applied step, of one of two replicas, by phase; how much
  of that time the device works.
* swarm: real peers on the mix of --devices, 2 stages × 2; whether the replicas of a stage write the same checkpoints.
What of the device a peer's engine puts to use: benchmarks/gpu_pipeline.py.

Times are medians, the device synchronized around each run; `spread`: largest less smallest, by the median.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import statistics
import subprocess
import tempfile
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from swarm.buffer import Buffer
from swarm.compute import adding, device_packing, norm, packing
from swarm.compute.averaging import buckets_of, reduction_of
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.digest import reduced_digest
from swarm.compute.graph import count_stages
from swarm.compute.layout import Layout
from swarm.compute.low_rank import orthonormal, product
from swarm.compute.memory_table import Mode, stage_memory
from swarm.compute.norm import squared_norm
from swarm.compute.optimizer import KINDS, StageOptimizer
from swarm.compute.precision import Precision
from swarm.compute.reduction import Reduction
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.events import CheckpointArchived, CheckpointWritten, PassOpened, PeerFenced, PeerJoined, StepDecided
from swarm.manifest import (
    BatchSection,
    CodecSection,
    DataSection,
    ModelSection,
    OptimizerSection,
    RunManifest,
    RunSection,
    Shard,
    SumSection,
)
from swarm.models.boundary import is_projector
from swarm.models.kinds import build_stage, count_parameters
from swarm.models.retraction import retract
from swarm.models.rms_norm import RMSNorm
from swarm.protocol.ids import Attempt, Microbatch, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Backward, EncodePart, Forward, SumBucket
from swarm.protocol.update import update_of

PASS = PassId(Term(0), StepNumber(0))
ATTEMPT = Attempt(PASS, StageIndex(0), 0)
MIDDLE = 1
"""The stage that is measured, of three: layers alone."""
CHAIN = "00" * 32
AVERAGING = ("none", "int8", "powersgd:4")
RUN = """
[run]
name = "gpu"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = {dim}
layers = 8
heads = 10
kv_heads = 5
ffn_dim = {ffn}
context = 256
cuts = [4]
[batch]
microbatches = 16
sequences = 4
sequence_length = {length}
[checkpoint]
every = {every}
[evaluation]
every = 0
[swarm]
replicas = 2
[timing]
step_budget_s = 60.0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--devices", default="cpu,cpu,cuda,cuda", help="of the four peers, by stage 0, 1, 0, 1")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; a peer's default")
    parser.add_argument("--patience", type=float, default=75.0, help="seconds after which the swarm is given up")
    parser.add_argument("--only", default="", help="names of parts, by commas")
    parser.add_argument("--smoke", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts: dict[str, Callable[[], dict[str, object]]] = {}
    lab = Lab(torch.device(options.device), options.smoke)
    parts["ceilings"] = lambda: ceilings(lab)
    parts["exactness"] = lambda: exactness(lab)
    parts["gradients"] = lambda: gradients(lab)
    parts["memory"] = lambda: memory(lab)
    parts["reduce"] = lambda: reduce(lab)
    parts["swarm"] = lambda: swarm(options.devices.split(","), options.smoke, options.patience)
    wanted = options.only.split(",") if options.only else list(parts)
    found: dict[str, object] = {"device": lab.name, "threads": options.threads}
    found["versions"] = {"torch": torch.__version__, "numpy": np.__version__}
    for name in wanted:
        lab.tidy()
        start = time.monotonic()
        try:
            found[name] = parts[name]()
        except Exception as error:
            traceback.print_exc()
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:400]}
        print(f"{name}, {time.monotonic() - start:.0f} s: {json.dumps(found[name])}", flush=True)
        write_results(options.out, "gpu", **found)


class Lab:
    """A device and how to time it."""

    def __init__(self, device: torch.device, smoke: bool) -> None:
        self.device = device
        self.smoke = smoke
        self.cuda = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device) if self.cuda else "cpu"
        self.peak = 0.0
        """TFLOP/s of the bf16 matrix product, once measured."""

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def tidy(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def times(self, run: Callable[[], object], repeats: int = 10, warm_up: int = 3) -> list[float]:
        """Seconds of each run, sorted."""
        found = []
        for number in range(warm_up + repeats):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            if number >= warm_up:
                found.append(time.perf_counter() - start)
        return sorted(found)

    def median(self, run: Callable[[], object], repeats: int = 10, warm_up: int = 3) -> float:
        return statistics.median(self.times(run, repeats, warm_up))

    def matrix_rate(self) -> float:
        """TFLOP/s in bf16."""
        size = 512 if self.smoke else 8192
        left, right = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        self.peak = 2 * size**3 / self.median(lambda: left @ right) / 1e12
        return self.peak


def ceilings(lab: Lab) -> dict[str, object]:
    size = 1 << (24 if lab.smoke else 30)
    source = torch.empty(size, dtype=torch.uint8, device=lab.device).random_()
    target = torch.empty_like(source)
    found = {"copy_gigabytes_per_second": 2 * size / lab.median(lambda: target.copy_(source)) / 1e9}
    found["bf16_teraflop_per_second"] = lab.matrix_rate()
    part = target[: size // 4]
    hosts = {"pageable": torch.empty(len(part), dtype=torch.uint8)}
    if lab.cuda:
        hosts["pinned"] = hosts["pageable"].pin_memory()
    for name, host in hosts.items():
        for way, to, of in (("to_device", part, host), ("to_host", host, part)):
            seconds = lab.median(partial(to.copy_, of))
            found[f"{way}_{name}_gigabytes_per_second"] = len(part) / seconds / 1e9
    return {name: round(value, 2) for name, value in found.items()}


def exactness(lab: Lab) -> dict[str, object]:
    """True: equal bits on the device and on the CPU."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"a.weight": (257, 129), "norm.weight": (511,), "embed_tokens.weight": (301, 65)}
    initial = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
    layout = Layout.of(initial, with_loss=False)
    sums = [
        (torch.randn(layout.length, generator=generator, dtype=torch.float64) * 2**24).round() * 2.0**-24
        for _ in range(20)
    ]
    x = torch.randn(1000, 64, generator=generator)
    y = torch.randn(1000, 64, generator=generator)
    found: dict[str, object] = {"optimizer": _same_optimizer(lab, initial, layout, sums)}
    found["optimizer_of_single_operations"] = _agrees(lab, partial(_single_operations, sums=sums), initial)
    found["operations"] = {name: _agrees(lab, run, {"x": x, "y": y}) for name, run in OPERATIONS.items()}
    roots = {"fp32": x.abs(), "fp64": x.abs().double() * 1.1}
    found["share_of_wrong_square_roots"] = {
        where: {name: _share_of_wrong_roots(values.to(device)) for name, values in roots.items()}
        for where, device in (("cpu", "cpu"), ("device", lab.device))
    }
    found["triton"] = _kernels(lab)
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    found["integer_sums"] = {
        f"{bits}, {name}": _exact_sums(lab, x, bits, kind) for bits in (20, 24, 30) for name, kind in kinds.items()
    }
    found["norm"] = _same_norm(lab)
    found["packed"] = _same_packing(lab)
    found["initial_values"] = _same_start(lab)
    found["frames"] = _same_frames(lab)
    found["reduce"] = {averaging: _same_reduce(lab, averaging, generator) for averaging in AVERAGING}
    square = torch.linalg.qr(torch.randn(300, 40, generator=generator))[0] + 1e-3
    left, right = torch.randn(64, 4, generator=generator), torch.randn(96, 4, generator=generator)
    found["retract"] = _agrees(lab, retract, {"weight": square})
    found["low_rank_orthonormal"] = _agrees(lab, orthonormal, {"left": left})
    found["low_rank_product"] = _agrees(lab, product, {"left": left, "right": right})
    return found


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "mul_scalar": lambda x, y: x * 0.9,
    "add_scaled": lambda x, y: x.add(y, alpha=0.1),
    "div": lambda x, y: x / y,
    "div_scalar": lambda x, y: x / 127,
    "div_filled": lambda x, y: x / torch.full_like(x, 127.0),
    "sqrt": lambda x, y: x.abs().sqrt(),
    "sqrt_through_fp64": lambda x, y: x.abs().double().sqrt().float(),
    "reciprocal": lambda x, y: x.reciprocal(),
    "rsqrt": lambda x, y: x.abs().rsqrt(),
    "exp": lambda x, y: x.exp(),
    "lerp": lambda x, y: x.lerp(y, 0.1),
    "addcmul": lambda x, y: x.addcmul(y, y, value=0.05),
    "addcdiv": lambda x, y: x.addcdiv(y, x.abs() + 1, value=-1e-3),
    "mul_fp64": lambda x, y: x.double() * y.double() * 1.1,
    "div_fp64": lambda x, y: x.double() / y.double(),
    "sqrt_fp64": lambda x, y: x.double().abs().sqrt(),
    "to_bf16": lambda x, y: x.bfloat16(),
    "round": lambda x, y: (x * 37.5).round(),
    "amax": lambda x, y: x.abs().amax(1),
}
"""What updates and codecs are made of."""


def _agrees(lab: Lab, run: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> bool | str:
    here = _digest(run(*(tensor.clone() for tensor in inputs.values())))
    try:
        return _digest(run(*(tensor.clone().to(lab.device) for tensor in inputs.values()))) == here
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"[:100]


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _same_optimizer(
    lab: Lab, initial: Mapping[str, Tensor], layout: Layout, sums: Sequence[Tensor]
) -> dict[str, object]:
    """After the first step and after all of `sums`, by kind; and how far apart the parameters are."""
    optimizers = []
    for device in ("cpu", lab.device):
        parameters = {name: value.clone().to(device) for name, value in initial.items()}
        optimizers.append(StageOptimizer(parameters, layout, OptimizerSection(), CHAIN))
    found: dict[str, object] = {}
    for number, reduced in enumerate(sums, 1):
        for optimizer in optimizers:
            optimizer.apply(reduced, 1 / 4096, update_of(OptimizerSection(), number - 1, 200))
        if number in (1, len(sums)):
            here, there = (optimizer.state().tensors for optimizer in optimizers)
            found[f"step_{number}"] = {
                kind: all(torch.equal(here[name], there[name]) for name in here if name.startswith(f"{kind}/"))
                for kind in KINDS
            }
            apart = [(here[name] != there[name]).double().mean().item() for name in here if name.startswith("param/")]
            found[f"step_{number}_share_of_parameters_apart"] = round(max(apart), 4)
    return found


def _single_operations(weight: Tensor, norm: Tensor, embedding: Tensor, sums: Sequence[Tensor]) -> Tensor:
    """AdamW from operations each of which IEEE 754 rounds once. torch's square root on the CPU is not one of them;
    that of a number of fp32, taken in fp64, is right after rounding even if its last bit was not."""
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for number, reduced in enumerate(sums, 1):
        gradient = (reduced[: weight.numel()] / 4096).float().view_as(weight).to(weight.device)
        rate, shrink = 1e-3 / (1 - 0.9**number), 1 / (1 - 0.95**number) ** 0.5
        first.mul_(0.9).add_(gradient.mul(1 - 0.9))
        second.mul_(0.95).add_(gradient.mul(gradient).mul_(1 - 0.95))
        weight.mul_(1 - 1e-3 * 0.1).sub_(first.div(second.double().sqrt().float().mul_(shrink).add_(1e-8)).mul_(rate))
    return torch.cat((weight, first, second))


def _share_of_wrong_roots(x: Tensor) -> float:
    """NumPy has the processor's instruction, which IEEE 754 binds."""
    return round(float((x.sqrt().cpu().numpy() != np.sqrt(x.cpu().numpy())).mean()), 5)


def _kernels(lab: Lab) -> dict[str, bool]:
    """Which jobs Triton kernels do; the log says why they do not do the others."""
    return {
        "add": adding.adder(lab.device) is not adding.plain,
        "pack": device_packing.kernels(lab.device) is not None,
        "norm": norm.kernel(lab.device) is not None,
    }


def _exact_sums(lab: Lab, x: Tensor, grid_bits: int, kind: torch.dtype) -> dict[str, object]:
    """The device's sums of gradients that grow, against the CPU's and against those of fp64, as they once were.

    With the device's own kernels, and with the plain operations that stand in for them.
    """
    layout = Layout.of({"x": x, "small": x[:2]}, with_loss=False)
    sums = SumSection(grid_bits=grid_bits)
    chosen = {"cpu": torch.device("cpu"), "device": lab.device, "plain": lab.device}
    accumulators = {name: Accumulator(layout, sums, device) for name, device in chosen.items()}
    before = torch.zeros(layout.length, dtype=torch.float64)
    offset = 1.5 * 2.0 ** (52 - grid_bits)
    usual = adding.adder
    for number in range(6):
        gradients = [(each * 10.0 ** (number - 4)).to(kind) for each in (x, x[:2])]
        before += (torch.cat([each.reshape(-1) for each in gradients]).double() + offset) - offset
        for name, accumulator in accumulators.items():
            try:
                setattr(adding, "adder", usual if name != "plain" else lambda device: adding.plain)  # noqa: B010
                accumulator.add([each.to(accumulator.device) for each in gradients], step=0)
            finally:
                setattr(adding, "adder", usual)  # noqa: B010
    found: dict[str, object] = {name: torch.equal(before, each.flat.cpu()) for name, each in accumulators.items()}
    found["bits"] = [8 * each.element_size() for each in accumulators["device"]._sums]
    return found


def _same_norm(lab: Lab) -> bool:
    generator = torch.Generator().manual_seed(6)
    shapes = {"a": torch.Size((300, 1000)), "b": torch.Size((511,)), "c": torch.Size((511,)), "d": torch.Size((1,))}
    layout = Layout(tuple(shapes), tuple(shapes.values()), with_loss=True)
    flat = torch.randint(-(1 << 52), 1 << 52, (layout.length,), generator=generator)
    return squared_norm(flat, layout, 2.0**-30) == squared_norm(flat.to(lab.device), layout, 2.0**-30)


def _same_packing(lab: Lab) -> bool | str:
    """Of numbers of a large bucket and of a small one, and those read again, for coarse and for fine grids."""
    found = device_packing.kernels(lab.device)
    if found is None:
        return "the CPU packs"
    rng = np.random.default_rng(7)
    for power in (3, 12, 26, 36, 50):
        numbers = rng.normal(0, 2.0**power, (1 << 18) + 1000).astype(np.int64)
        places = [slice(0, 1 << 18), slice(1 << 18, len(numbers))]
        packed = found.pack(torch.from_numpy(numbers).to(lab.device), places, 30)
        payloads = [packing.pack(numbers[where], 30) for where in places]
        out = torch.empty(len(numbers), dtype=torch.int64, device=lab.device)
        found.unpack(payloads, places, 30, out)
        same = all(packed.payload(index) == payload for index, payload in enumerate(payloads))
        if not same or not np.array_equal(out.cpu().numpy(), numbers):
            return False
    return True


def _same_start(lab: Lab) -> bool:
    model = _manifest(256, 640, 2, 2, 128).model
    return _digest(*build_stage(model, MIDDLE, device=lab.device, seed=0).parameters()) == _digest(
        *build_stage(model, MIDDLE, seed=0).parameters()
    )


def _same_frames(lab: Lab) -> bool:
    """Of equal activations and gradients, on the device and not."""
    manifest = _manifest(256, 640, 2, 2, 128)
    tokens, hidden, gradient = _inputs(manifest)
    body = BodyFormat(manifest)
    packed: tuple[tuple[Callable[[Tensor], Buffer], Tensor], ...] = (
        (partial(body.pack_forward, 1, BodyKind.BATCH, tokens), hidden),
        (partial(body.pack_backward, 2), gradient),
    )
    return all(pack(values.to(lab.device)) == pack(values) for pack, values in packed)


def _same_reduce(lab: Lab, averaging: str, generator: torch.Generator) -> bool:
    """Two replicas of equal sums: every part, sum and reduced number."""
    shapes = {"a.weight": torch.Size((300, 200)), "norm.weight": torch.Size((200,))}
    gradients = [[torch.randn(shape, generator=generator) for shape in shapes.values()] for _ in range(2)]
    digests = []
    for device in (torch.device("cpu"), lab.device):
        sums = SumSection(grid_bits=24, averaging=averaging)
        layout = Layout(tuple(shapes), tuple(shapes.values()), with_loss=False)
        accumulators = [Accumulator(layout, sums, device) for _ in range(2)]
        for accumulator, each in zip(accumulators, gradients, strict=True):
            accumulator.add([gradient.to(device) for gradient in each], step=0)
        replicas = _Replicas(accumulators, sums)
        crossed = replicas.run(lambda replica, run: run())
        digests.append((hashlib.sha256(b"".join(crossed)).digest(), replicas.reductions[0].reduced(ATTEMPT)))
    (here, reduced), (there, other) = digests
    return here == there and torch.equal(reduced, other.cpu())


WAVE = 128
"""Buckets that two replicas order at a time."""

T = TypeVar("T")
Order = TypeVar("Order", EncodePart, SumBucket)


class _Timed(Protocol):
    """Does a replica's order and returns what comes of it."""

    def __call__(self, replica: int, run: Callable[[], T], /) -> T: ...


class _Replicas:
    """Two replicas that reduce in turn, in one process: each bucket is one's to sum."""

    def __init__(self, accumulators: Sequence[Accumulator], sums: SumSection) -> None:
        self.reductions = [reduction_of(accumulator, sums) for accumulator in accumulators]
        self.exact = not sums.compresses
        self._buckets = buckets_of(accumulators[0].layout, sums)

    def run(self, timed: _Timed, attempt: Attempt = ATTEMPT) -> list[Buffer]:
        """All parts and sums. WAVE buckets are ordered at a time, as where the link is quicker than the replicas."""
        crossed: list[Buffer] = []
        first, count = self._buckets.first_round, self._buckets.count
        for buckets in (range(first), range(first, count)):
            for start in range(0, len(buckets), WAVE):
                crossed += self._wave(buckets[start : start + WAVE], timed, attempt)
        return crossed

    def _wave(self, buckets: Sequence[int], timed: _Timed, attempt: Attempt) -> list[Buffer]:
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


def gradients(lab: Lab) -> dict[str, object]:
    manifest = _manifest(256, 640, 2, 2, 128)
    stage = Stage(manifest, MIDDLE, device=str(lab.device), graph_budget_bytes=1 << 40, initialised=True)
    bodies = _bodies(manifest)
    runs = []
    for budget in (1 << 40, 1 << 40, 0):
        stage.begin()
        stage.limit_graphs(budget)
        _microbatch(stage, bodies)
        runs.append(stage._accumulator.flat.cpu())
    body = stage._format
    forward = body.unpack_forward(MIDDLE, bodies[0], PassKind.TRAIN)
    module = build_stage(manifest.model, MIDDLE, seed=manifest.run.seed).double()
    assert forward.hidden is not None, "a middle stage receives one"
    source = forward.hidden.double().requires_grad_()
    wanted = body.unpack_backward(MIDDLE + 1, bodies[1]).double()
    plain = RMSNorm.forward
    try:
        setattr(RMSNorm, "forward", _fp64_norm)  # noqa: B010 - the model's own goes through fp32
        found = torch.autograd.grad(module(source, forward.inputs), list(module.parameters()), wanted)
    finally:
        setattr(RMSNorm, "forward", plain)  # noqa: B010
    exact = torch.cat([gradient.reshape(-1) for gradient in found])
    error = float((runs[0] - exact).norm() / exact.norm())
    return {
        "same_twice": torch.equal(runs[0], runs[1]),
        "computed_again_equals_kept": torch.equal(runs[0], runs[2]),
        "relative_error": float(f"{error:.3g}"),
    }


def _fp64_norm(self: RMSNorm, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps))


def memory(lab: Lab) -> dict[str, object]:
    """Bytes a parameter that are allocated at most, by phase, from an empty device."""
    if not lab.cuda:
        return {"skipped": "only where a device counts what it allocates"}
    found: dict[str, object] = {}
    for rows, length in ((1, 512), (2, 2048)):
        manifest = _manifest(2048, 5632, 8, rows, length, subspace_dim=128)
        lab.tidy()
        before = torch.cuda.memory_allocated()
        stage = _stage(lab, manifest)
        parameters = count_parameters(manifest.model, MIDDLE)
        row: dict[str, float] = {"resident": (torch.cuda.memory_allocated() - before) / parameters}
        found[f"8 layers of 2048, {rows} × {length} tokens"] = row

        def note(phase: str, row: dict[str, float] = row, before: int = before, parameters: int = parameters) -> None:
            row[phase] = (torch.cuda.max_memory_allocated() - before) / parameters
            torch.cuda.reset_peak_memory_stats()

        torch.cuda.reset_peak_memory_stats()
        bodies = _bodies(manifest)
        for number in range(4):
            stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), bodies[0]))
            note(f"forward_{number + 1}")
        row["kept_graphs_4"] = (torch.cuda.memory_allocated() - before) / parameters
        assert stage._graphs._graph_bytes is not None, "a graph was measured"
        row["told_graph"] = stage._graphs._graph_bytes / parameters
        for number in range(4):
            stage.backward(Backward(PASS, Microbatch(number), bodies[1]))
            note(f"backward_{number + 1}")
        reduced = stage._accumulator.numbers(slice(0, stage._accumulator.layout.length))
        update = update_of(manifest.optimizer, 0, manifest.run.steps)
        stage.optimizer.apply(reduced, 1e-6, update, unit=stage.reduction.unit)
        del reduced
        note("apply")
        mode = Mode(str(lab.device), Precision.usual(lab.device).value)
        planned = stage_memory(manifest, count_stages(manifest, mode)[MIDDLE], mode)
        narrow = planned.accumulator / 2  # no sum needs 64 bits here
        row["planned_resident"] = (planned.resident - narrow) / parameters
        row["planned_graph"] = planned.graph / parameters
        row["planned_backward_1"] = (planned.with_graphs(4) - narrow) / parameters
        for phase in row:
            row[phase] = round(row[phase], 2)
        del stage
        gc.collect()
    return found


def reduce(lab: Lab) -> dict[str, object]:
    """Nanoseconds a parameter of one replica. The other replica runs in this process too, for another machine."""
    size, tensors = (64, 2) if lab.smoke else (4096, 4)
    shapes = {f"{number}.weight": torch.Size((size, size)) for number in range(tensors)}
    layout = Layout(tuple(shapes), tuple(shapes.values()), with_loss=False)
    parameters = {name: torch.randn(shape, device=lab.device) * 0.02 for name, shape in shapes.items()}
    found: dict[str, object] = {"parameters": layout.length, "triton": _kernels(lab)}
    for averaging in AVERAGING:
        sums = SumSection(grid_bits=24, averaging=averaging)
        accumulators = [Accumulator(layout, sums, lab.device) for _ in range(2)]
        for accumulator in accumulators:
            accumulator.add([torch.randn(shape, device=lab.device) for shape in shapes.values()], step=0)
        gradients = [torch.randn(shape, device=lab.device) for shape in shapes.values()]
        row: dict[str, object] = {}
        if averaging == AVERAGING[0]:
            spare = Accumulator(layout, sums, lab.device)
            for _ in range(2):  # the second finds int64 where that is needed
                spare.add(gradients, step=0)
            row["add_ns"] = lab.median(partial(spare.add, gradients, step=0), 5, 1)
            del spare
        replicas = _Replicas(accumulators, sums)
        row |= _phases(lab, replicas, parameters, layout)
        found[averaging] = {
            name: round(value / layout.length * 1e9, 3) if name.endswith("_ns") else value  # type: ignore[operator]
            for name, value in row.items()
        }
        print(json.dumps({averaging: found[averaging]}), flush=True)
        del accumulators, replicas, gradients
        lab.tidy()
    return found


def _phases(lab: Lab, replicas: _Replicas, parameters: Mapping[str, Tensor], layout: Layout) -> dict[str, object]:
    """Seconds of one replica as `…_ns`, and of a processor of the host as `…_host_ns`.

    `part`, `sum` and `store` are timed one by one, the device awaited after each. `exchange` is not: both replicas'
    work, one order after the other as in a run, by two.
    """
    spent: dict[str, float] = defaultdict(float)

    def timed(replica: int, run: Callable[[], T], /) -> T:
        lab.wait()
        start, busy = time.perf_counter(), time.thread_time()
        result = run()
        lab.wait()
        if replica == 0:
            name = getattr(run, "func", run).__name__
            spent[f"{name}_ns"] += time.perf_counter() - start
            spent[f"{name}_host_ns"] += time.thread_time() - busy
        return result

    def at_once(number: int) -> None:
        replicas.run(lambda replica, run: run(), Attempt(PASS, StageIndex(0), number))
        for reduction in replicas.reductions:
            reduction.reduced(Attempt(PASS, StageIndex(0), number))  # what is put aside is read
            reduction.applied(Attempt(PASS, StageIndex(0), number), skipped=True)

    at_once(1)  # kernels are compiled, memory is there
    numbers = itertools.count(2)
    busy = time.thread_time()
    repeats = 3 if replicas.exact else 1  # the CPU takes seconds for a compressed one
    seconds = lab.times(lambda: at_once(next(numbers)), repeats, 0)
    exchange = statistics.median(seconds) / 2
    host = (time.thread_time() - busy) / 2 / repeats
    profile = _profile(lab, lambda: at_once(next(numbers))) if lab.cuda and replicas.exact else {}
    crossed = replicas.run(timed)
    reduction = replicas.reductions[0]
    reduced = reduction.reduced(ATTEMPT)
    timed(0, partial(squared_norm, reduced, layout, reduction.unit))
    timed(0, partial(reduced_digest, reduced))
    timed(0, partial(reduction.assemble, ATTEMPT))
    digest = reduction.digest(ATTEMPT)
    optimizer = StageOptimizer(parameters, layout, OptimizerSection(), CHAIN)
    update = update_of(OptimizerSection(), 0, 100)
    for _ in range(2):  # the first finds its memory
        spent["apply_ns"] = spent["apply_host_ns"] = 0.0
        timed(0, partial(optimizer.apply, reduced, 1e-6, update, unit=reduction.unit, digest=digest))
    squares, apply = spent["squared_norm_ns"], spent["apply_ns"]
    row: dict[str, object] = {"exchange_ns": exchange, "exchange_host_ns": host, **spent}
    row["exchange_norm_apply_ns"] = exchange + squares + apply
    row["exchange_norm_apply_host_ns"] = host + spent["squared_norm_host_ns"] + spent["apply_host_ns"]
    row["bytes_crossed"] = round(sum(map(len, crossed)) / layout.length, 3)
    row["reduced_on"] = str(reduced.device)
    if profile:
        row["device_share_of_exchange"] = round(float(profile["device_ms"]) / 1e3 / (2 * exchange), 3)  # type: ignore[arg-type]
        row["profile"] = profile
    return row


def swarm(devices: Sequence[str], smoke: bool, patience: float) -> dict[str, object]:
    steps, every = (4, 2) if smoke else (12, 4)
    sizes = {"dim": 80, "ffn": 224, "length": 32} if smoke else {"dim": 320, "ffn": 896, "length": 256}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        data = [*PEERS, "prepare", "--vocab-size", "4096", "--out", str(folder / "data")]
        subprocess.run(data, check=True, stdout=subprocess.DEVNULL)
        path = folder / "RUN.toml"
        path.write_text(RUN.format(steps=steps, every=every, **sizes))
        threads = "1" if smoke else "2"
        joins = [[*PEERS, "join", "--threads", threads, "--seats", "1", "--device", device] for device in devices]
        with _OneByOne(folder / "swarm", path, joins) as local:
            ended = "whole"
            try:
                local.finish(patience)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                ended = str(error)[-600:]
            for log in sorted(local.folder.glob("*.out")):
                print(f"{log.name}:", *log.read_text(errors="replace").splitlines()[-8:], sep="\n    ", flush=True)
            events = [event for _, event in local.events()]
            opened = [at for at, event in local.events() if isinstance(event, PassOpened)]
            digests: dict[str, dict[str, str]] = defaultdict(dict)
            for number, device in enumerate(devices):
                for _, event in local.events(f"peer-{number}"):
                    if isinstance(event, CheckpointWritten):
                        checkpoint = f"stage {event.stage}, version {event.version}"
                        digests[checkpoint][f"{number}: {device}"] = event.digest[:12]
    seconds = [later - earlier for earlier, later in itertools.pairwise(opened[1:])]
    return {
        "devices": list(devices),
        "stages": [event.stage for event in events if isinstance(event, PeerJoined)],
        "ended": ended,
        "steps_decided": sum(isinstance(event, StepDecided) for event in events),
        "of": steps,
        "replicas_agree": bool(digests) and all(len(set(each.values())) == 1 for each in digests.values()),
        "digests": digests,
        "archived": [event.version for event in events if isinstance(event, CheckpointArchived)],
        "fenced": [event.reason[:200] for event in events if isinstance(event, PeerFenced)],
        "losses": [round(event.loss, 4) for event in events if isinstance(event, StepDecided)],
        "step_seconds": round(statistics.median(seconds), 2) if seconds else None,
    }


class _OneByOne(LocalSwarm):
    """A peer starts when the one before has joined: it goes where most are missing."""

    def join(self, words: Sequence[str]) -> None:
        super().join(words)
        deadline = time.monotonic() + 30
        while sum(isinstance(event, PeerJoined) for _, event in self.events()) < len(self.peers):
            if time.monotonic() > deadline or self.peers[-1].code is not None:
                return  # the run's end tells
            time.sleep(0.1)


def _profile(lab: Lab, run: Callable[[], object]) -> dict[str, object]:
    """How often the host waits for the device and starts a kernel; which kernels take most of the device's time."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        lab.wait()
    averages = profiler.key_averages()
    kernels = [e for e in averages if e.device_type == DeviceType.CUDA and e.self_device_time_total > 0]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    return {
        "waits": sum(event.count for event in averages if "Synchronize" in event.key),
        "launches": sum(event.count for event in averages if "LaunchKernel" in event.key),
        "device_ms": round(sum(event.self_device_time_total for event in kernels) / 1e3, 3),
        "kernels_ms": [[e.key[:90], e.count, round(e.self_device_time_total / 1e3, 3)] for e in kernels[:14]],
    }


def _manifest(dim: int, ffn: int, layers: int, rows: int, length: int, subspace_dim: int = 0) -> RunManifest:
    """A run whose middle stage has `layers` layers, and whose first and last stages have one each."""
    subspace: dict[str, Any] = {"residual": "subspace", "subspace_dim": subspace_dim} if subspace_dim else {}
    model = ModelSection(
        vocab_size=32000,
        dim=dim,
        layers=layers + 2,
        heads=max(1, dim // 64),
        kv_heads=max(1, dim // 256),
        ffn_dim=ffn,
        context=length,
        cuts=(1, layers + 1),
        **subspace,
    )
    shard = Shard(file="x", sha256="0" * 64, tokens=1_000_000)
    return RunManifest(
        run=RunSection(steps=100),
        model=model,
        subspace_id=model.subspace_id,
        batch=BatchSection(microbatches=8, sequences=rows, sequence_length=length),
        codec=CodecSection(forward="int8", backward="int8"),
        sums=SumSection(grid_bits=24),
        optimizer=OptimizerSection(),
        data=DataSection(
            tokenizer_sha256="0" * 64,
            vocab_size=model.vocab_size,
            train=(shard,),
            heldout=(shard,),
            unigram_entropy=4.0,
            bytes_per_token=4.0,
        ),
    )


def _stage(lab: Lab, manifest: RunManifest) -> Stage:
    """With values drawn on the device: seeded ones take a core most of a minute at these sizes."""
    stage = Stage(manifest, MIDDLE, device=str(lab.device), graph_budget_bytes=1 << 40, initialised=False)
    _fill(stage.parameters)
    stage.loaded()
    return stage


@torch.no_grad()
def _fill(parameters: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        assert not is_projector(name), "a projector must be orthonormal"
        parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(0, 0.02)


def _inputs(manifest: RunManifest) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, an activation and a gradient, on the CPU."""
    batch = manifest.batch
    generator = torch.Generator().manual_seed(0)
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width)
    columns = (batch.sequences, batch.sequence_length + 1)
    tokens = torch.randint(0, manifest.model.vocab_size, columns, generator=generator)
    return tokens, torch.randn(shape, generator=generator), torch.randn(shape, generator=generator) * 1e-3


def _bodies(manifest: RunManifest) -> tuple[Buffer, Buffer]:
    """What the middle stage receives of a microbatch: the forward's body, the backward's."""
    body = BodyFormat(manifest)
    tokens, hidden, gradient = _inputs(manifest)
    forward = body.pack_forward(MIDDLE, BodyKind.BATCH, tokens, hidden)
    return forward, body.pack_backward(MIDDLE + 1, gradient)


def _microbatch(stage: Stage, bodies: tuple[Buffer, Buffer]) -> None:
    stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(0), bodies[0]))
    stage.backward(Backward(PASS, Microbatch(0), bodies[1]))


if __name__ == "__main__":
    main()
