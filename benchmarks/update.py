"""Measures what equal bits on every machine cost, and their check: one step of AdamW and of Muon, the checksum of the
state, initial values, sketches of the sums.

This program's functions and torch's own are measured in turn, and compared with the microbatches of a step of a small
model.

    python -m benchmarks.update [--parameters 10000000] [--threads 1] [--device cpu] [--only-sketches]

This program's optimizer step rounds once per operation, so all kinds of machines get the same bits. Torch's step fuses
some operations, so machines get different bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.optim.adamw import adamw

from swarm.compute import muon
from swarm.compute.adamw import Factors, step
from swarm.compute.checksum import checksum
from swarm.compute.layout import Layout
from swarm.compute.optimizer import is_hidden
from swarm.compute.sketching import sketch_of
from swarm.compute.sums import Accumulator
from swarm.manifest import ModelSection, OptimizerSection, SumSection
from swarm.models.initial import seeded_normal
from swarm.models.kinds import build_stage
from swarm.protocol.update import update_of

REPEATS = 7
SECTION = OptimizerSection()
MODEL = ModelSection(vocab_size=2048, dim=256, layers=6, heads=8, kv_heads=4, ffn_dim=768, context=128, cuts=())
MICROBATCHES, SEQUENCES = 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only-sketches", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count, device = arguments.parameters, torch.device(arguments.device)
    sketches(count, device)
    if arguments.only_sketches:
        return
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
    whole_step(device)


def sketches(count: int, device: torch.device) -> None:
    """Seconds for what Prepared contains for the screen: one sketch of own sums, two of all sums; and for adding the
    gradients.
    """
    layout = Layout(("all",), (torch.Size((count,)),), with_loss=False)
    share, gradient = Accumulator(layout, SumSection(), device), torch.rand(count, device=device)
    share.add([gradient])
    every, whole = share.numbers(slice(0, count)), slice(0, count)
    ways: dict[str, Callable[[], object]] = {
        "sketch of own sums": lambda: sketch_of(share.numbers, whole, device, "digest"),
        "two of all": lambda: sketch_of(lambda part: every[part], whole, device, "digest", "step"),
        "addition of a microbatch": lambda: share.add([gradient]),
    }
    for name, seconds in side_by_side(ways, device).items():
        print(f"{name:24} {1e3 * seconds:9.2f} ms   {1e9 * seconds / count:6.2f} ns a parameter")


def whole_step(device: torch.device) -> None:
    """A step of a whole small model: its microbatches, then the update in torch and in this program, and the
    checksum.
    """
    torch.manual_seed(0)
    module = build_stage(MODEL, 0, device=device, seed=0)
    parameters = list(module.parameters())
    tokens = torch.randint(0, MODEL.vocab_size, (SEQUENCES, MODEL.context + 1), device=device)
    means = [torch.rand_like(p) for p in parameters]
    moments = [[torch.rand_like(p) for p in parameters] for _ in range(2)]

    def microbatch() -> None:
        torch.autograd.grad(module.loss_sum(module(tokens[:, :-1]), tokens[:, 1:]), parameters)

    def each(run: Callable[..., None]) -> None:
        with torch.no_grad():
            for tensors in zip(parameters, means, *moments, strict=True):
                run(*(tensor.detach() for tensor in tensors))

    ways: dict[str, Callable[[], object]] = {
        "microbatch": microbatch,
        "before": lambda: each(torchs),
        "after": lambda: each(ours),
        "checksum": lambda: checksum((*parameters, *moments[0], *moments[1])),
    }
    count = sum(p.numel() for p in parameters)
    sums = torch.randint(-(1 << 20), 1 << 20, (count,), device=device)
    seeds = (("digest",), ("digest", "step"))  # of own sums, and of all
    named = zip(module.named_parameters(), means, *moments, strict=True)
    matrices = [(parameter, *rest) for (name, parameter), *rest in named if is_hidden(name, parameter)]

    def each_matrix(run: Callable[..., None]) -> None:
        for tensors in matrices:
            run(*(tensor.detach() for tensor in tensors))

    ways["muon"], ways["adamw of the same"] = lambda: each_matrix(muons), lambda: each_matrix(ours)
    ways["sketches"] = lambda: [sketch_of(lambda part: sums[part], slice(0, count), device, *each) for each in seeds]
    times = side_by_side(ways, device)
    before = MICROBATCHES * times["microbatch"] + times["before"]
    after = MICROBATCHES * times["microbatch"] + times["after"] + times["checksum"]
    print(f"a step of {count} parameters, {MICROBATCHES} microbatches of {SEQUENCES} × {MODEL.context} tokens:")
    print(f"  before {1e3 * before:.1f} ms, after {1e3 * after:.1f} ms ({after / before - 1:+.2%})")
    print(f"  update {1e3 * times['before']:.2f} → {1e3 * times['after']:.2f} ms; ", end="")
    print(f"checksum {1e3 * times['checksum']:.2f} ms ({times['checksum'] / after:.2%} of the step); ", end="")
    print(f"sketches {1e3 * times['sketches']:.2f} ms ({times['sketches'] / after:.2%})")
    longer, matrix_flop = times["muon"] - times["adamw of the same"], sum(muon.flop(p.shape) for p, *_ in matrices)
    print(f"  Muon for the layers' matrices: {1e3 * longer:.1f} ms longer ({longer / after:.1%} of the step), ", end="")
    print(f"{1e-9 * matrix_flop / times['muon']:.0f} GFLOP/s")


def side_by_side(ways: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Median seconds of each function, called in turn. On a CPU, the time is CPU time."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):  # the first is a warm-up
        for name, run in ways.items():
            started = clock()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(clock() - started)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def ours(parameter: torch.Tensor, mean: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    step(parameter, mean, first, second, Factors.of(SECTION, update_of(SECTION, 20, 100), SECTION.weight_decay))


def muons(parameter: torch.Tensor, mean: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    update = update_of(SECTION, 20, 100)
    muon.step(parameter, mean.flatten(), first, second, muon.factors_of(SECTION, update), update.learning_rate)


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
