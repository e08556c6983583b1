"""Milliseconds of one optimizer step, ours beside torch's own, and of one stage's initial values: on this machine.

    python benchmarks/update.py [--parameters 10000000] [--threads 1] [--device cpu]

Ours rounds once per operation, so that all kinds of machines come to the same bits; torch's fuses some: they do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.optim.adamw import adamw

from swarm.compute.adamw import Factors, step
from swarm.manifest import OptimizerSection
from swarm.models.initial import seeded_normal
from swarm.protocol.update import update_of

REPEATS = 7
SECTION = OptimizerSection()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count, device = arguments.parameters, torch.device(arguments.device)
    tensors = [torch.rand(count, device=device) for _ in range(4)]
    ways: dict[str, Callable[[], object]] = {
        "update, ours": lambda: ours(*tensors),
        "update, torch's": lambda: torchs(*tensors),
        "initial values, ours": lambda: seeded_normal("x", torch.Size((count,)), 0),
        "initial values, torch's": lambda: torch.randn(count),
    }
    print(f"{count} parameters, {arguments.threads} threads, {device}")
    times = side_by_side(ways, device)
    for name, seconds in times.items():
        print(f"{name:24} {1e3 * seconds:9.2f} ms   {1e9 * seconds / count:6.2f} ns a parameter")


def side_by_side(ways: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """The median of each, taken in turns: what else the machine does strikes all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):  # the first is a warm-up
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def ours(parameter: torch.Tensor, mean: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    step(parameter, mean, first, second, Factors.of(SECTION, update_of(SECTION, 20, 100), SECTION.weight_decay))


def torchs(parameter: torch.Tensor, mean: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    adamw(
        [parameter],
        [mean],
        [first],
        [second],
        [],
        [torch.tensor(20.0)],
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


if __name__ == "__main__":
    main()
