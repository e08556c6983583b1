"""Bits that replicas must share: whatever every replica computes for itself, on the device and on the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.replicas import Replicas, kernels_of
from benchmarks.gpu.workload import ATTEMPT, MIDDLE, inputs_of, run_of
from swarm.buffer import Buffer
from swarm.compute import adding, device_packing, packing
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.layout import Layout
from swarm.compute.low_rank import orthonormal, product
from swarm.compute.norm import squared_norm
from swarm.compute.optimizer import KINDS, StageOptimizer
from swarm.compute.sums import Accumulator
from swarm.manifest import OptimizerSection, SumSection
from swarm.models.kinds import build_stage
from swarm.models.retraction import retract
from swarm.protocol.update import update_of

CHAIN = "00" * 32
AVERAGING = ("none", "int8", "powersgd:4")


def measure(lab: Lab) -> Found:
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
    found["triton"] = kernels_of(lab)
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
    shared = {name: found[name] for name in SHARED}
    apart = [name for name, value in shared.items() if not _is_same(value)]
    return Found(
        found, (Aim("all bits that replicas must share are equal to a CPU's", "none apart", apart, not apart),)
    )


SHARED = ("optimizer", "integer_sums", "norm", "packed", "initial_values", "frames", "reduce", "retract")
"""The figures about what every replica computes for itself. The others explain why it uses certain operations only."""


def _is_same(value: object) -> bool:
    """True if all figures in `value` say so. Numbers of bits and shares of numbers that are apart say nothing."""
    if isinstance(value, dict):
        return all(_is_same(each) for key, each in value.items() if key != "bits" and "share" not in key)
    return value is True or value == "the CPU packs"


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
    model = run_of(256, 640, 2, 2, 128).model
    return _digest(*build_stage(model, MIDDLE, device=lab.device, seed=0).parameters()) == _digest(
        *build_stage(model, MIDDLE, seed=0).parameters()
    )


def _same_frames(lab: Lab) -> bool:
    """Of equal activations and gradients, on the device and not."""
    manifest = run_of(256, 640, 2, 2, 128)
    tokens, hidden, gradient = inputs_of(manifest)
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
        replicas = Replicas(accumulators, sums)
        crossed = replicas.run(lambda replica, run: run())
        digests.append((hashlib.sha256(b"".join(crossed)).digest(), replicas.reductions[0].reduced(ATTEMPT)))
    (here, reduced), (there, other) = digests
    return here == there and torch.equal(reduced, other.cpu())
