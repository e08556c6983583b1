"""Prints digests of all that replicas must hold the same, as kinds of machines compute it, a line of each.

    python machine_kind.py '[[KIND, THREADS, LIBRARY], ...]'

`ATEN_CPU_CAPABILITY` says the kind, and `MKL_ENABLE_INSTRUCTIONS` that of torch's library. Both are read when something
is computed for the first time. So each kind is a fork of this process, which has computed nothing; a fork imports
nothing again. Run by test_machine_kinds.py.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable

import torch
from blake3 import blake3
from torch import Tensor
from torch.optim.adamw import adamw

from swarm.compute.digest import reduced_digest
from swarm.compute.layout import Layout
from swarm.compute.low_rank import orthonormal, product
from swarm.compute.norm import squared_norm
from swarm.compute.optimizer import StageOptimizer
from swarm.compute.totals import combine
from swarm.manifest import ModelSection, OptimizerSection, SumSection
from swarm.models.initial import seeded_normal
from swarm.models.kinds import build_stage
from swarm.models.retraction import retract
from swarm.protocol.update import update_of

UPDATES = 8
SECTION = OptimizerSection(learning_rate=1.0, warmup_steps=3, eps=1e-7)
"""So large a rate that the last bit of every operation shows."""
LLAMA = ModelSection(vocab_size=300, dim=48, layers=3, heads=4, kv_heads=2, ffn_dim=100, context=8, cuts=(1,))
MODELS = {
    "llama": LLAMA,
    "subspace": LLAMA.model_copy(update={"residual": "subspace", "subspace_dim": 12, "boundary": "none"}),
    "projector": LLAMA.model_copy(update={"boundary": "projector", "boundary_dim": 12}),
}


def main() -> None:
    for kind, threads, library in json.loads(sys.argv[1]):
        child = os.fork()
        if not child:
            show_all(kind, threads, library)
            return
        if os.waitpid(child, 0)[1]:
            sys.exit(f"it ended badly as {kind}, with {threads} threads")


def show_all(kind: str, threads: int, library: str) -> None:
    os.environ["ATEN_CPU_CAPABILITY"] = kind
    if library:
        os.environ["MKL_ENABLE_INSTRUCTIONS"] = library
    torch.set_num_threads(threads)
    print(json.dumps({name: show() for name, show in SHOWN.items()}))
    if (found := torch.backends.cpu.get_cpu_capability()) != kind.upper():
        sys.exit(f"it computed as {found} and not as {kind}: its kind was decided before the fork")


def initial(model: ModelSection) -> str:
    found = blake3()
    for stage in range(model.stages):
        for name, parameter in build_stage(model, stage, seed=7).named_parameters():
            found.update(name.encode() + reduced_digest(parameter).encode())
    return found.hexdigest()


def sums_of(step: int, length: int) -> Tensor:
    """Gradient sums as a step leaves them: of all sizes, with zeros among them."""
    sums = seeded_normal(f"sums {step}", torch.Size((length,)), 1).double()
    sums *= 2.0 ** (seeded_normal("size", torch.Size((length,)), 2) * 4).round().double()
    sums[::17] = 0.0
    return sums


def updates(model: ModelSection, section: OptimizerSection = SECTION) -> str:
    module = build_stage(model, 0, seed=7)
    parameters = dict(module.named_parameters())
    layout = Layout.of(parameters, with_loss=False)
    optimizer = StageOptimizer(parameters, layout, section, "ab" * 32)
    for step in range(UPDATES):
        optimizer.apply(sums_of(step, layout.length), 1 / 3, update_of(section, step, UPDATES))
    return optimizer.digest()


def torchs_own_updates() -> str:
    """The control: what torch's AdamW makes of the same."""
    parameter = seeded_normal("parameter", torch.Size((50_000,)), 7)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for step in range(UPDATES):
        adamw(
            [parameter],
            [sums_of(step, len(parameter)).float()],
            [first],
            [second],
            [],
            [torch.tensor(float(step))],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=SECTION.beta1,
            beta2=SECTION.beta2,
            lr=SECTION.learning_rate,
            weight_decay=SECTION.weight_decay,
            eps=SECTION.eps,
            maximize=False,
        )
    return reduced_digest(parameter)


def norm() -> str:
    layout = Layout(("a", "b"), (torch.Size((300, 111)), torch.Size((7,))), with_loss=True)
    return squared_norm(sums_of(0, layout.length), layout).hex()


def canonical_nan() -> str:
    one, other = sums_of(0, 999), sums_of(1, 999)
    one[5], other[5], one[700] = math.inf, -math.inf, math.nan
    return reduced_digest(combine(one, (other,), SumSection(mode="fp32")))


def retraction() -> str:
    return reduced_digest(retract(torch.eye(200, 33) + 0.01 * seeded_normal("", torch.Size((200, 33)), 0)))


def low_rank() -> str:
    left = orthonormal(seeded_normal("left", torch.Size((301, 4)), 0))
    return reduced_digest(product(left, seeded_normal("right", torch.Size((77, 4)), 0)))


SHOWN: dict[str, Callable[[], str]] = {
    **{f"initial {name}": lambda model=model: initial(model) for name, model in MODELS.items()},
    **{f"updates {name}": lambda model=model: updates(model) for name, model in MODELS.items()},
    "updates with Muon": lambda: updates(LLAMA, SECTION.model_copy(update={"kind": "muon"})),
    "norm": norm,
    "canonical NaN": canonical_nan,
    "retraction": retraction,
    "low rank": low_rank,
    "torch's own updates": torchs_own_updates,
    "torch's own normal values": lambda: reduced_digest(torch.randn(999, generator=torch.Generator().manual_seed(0))),
}

if __name__ == "__main__":
    main()
