"""Measures how often the screen doubts honest peers, and how soon it doubts one that lies, on small models in one
process.

    python -m benchmarks.screen [--steps 1000] [--corpus FOLDER] [--out benchmarks/results/screen.json]

Each row is a shape of swarm: two stages with a number of replicas, whose shares of the microbatches change from step to
step. All of them are honest; `doubted` counts the steps, after the first tenth, in which the screen doubted one of
them. Then one peer of each step's last stage multiplies its sums by a factor, from the middle of the run on; `seen` is
the percentage of these steps in which the screen doubts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch

from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from swarm.compute.layout import Layout
from swarm.compute.sketching import sketch_of
from swarm.compute.sums import Accumulator
from swarm.data import CorpusReader, read_corpus
from swarm.manifest import BatchSection, ModelSection, RunFile, RunSection, SumSection
from swarm.models.kinds import build_stage
from swarm.protocol.coordinator.audit.screen import Screen
from swarm.protocol.coordinator.passes.answer import OwnSums
from swarm.protocol.ids import Actor

CPU = torch.device("cpu")
STAGES = 2
FACTORS = (-1.0, 1.25, 2.0, -300.0, 0.01, 1e6)
"""Factors by which a liar multiplies its sums."""

Step = tuple[tuple[OwnSums, ...], ...]
"""The sums of a step, by stage."""


@dataclass(frozen=True)
class Shape:
    replicas: int
    microbatches: int
    sequences: int
    dim: int
    rate: float = 3e-3


SHAPES = {
    "3 replicas, 4 microbatches each": Shape(3, 12, 2, 48),
    "3 replicas, 1 or 2 small ones each": Shape(3, 5, 1, 48),
    "2 replicas, 3 each": Shape(2, 6, 2, 48),
    "6 replicas, 2 each": Shape(6, 12, 1, 32),
    "3 replicas, 2 each, a rate far too high": Shape(3, 6, 2, 48, 5e-2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    with folder_with_corpus("screen", options.corpus, vocab_size=1024) as folder:
        for name, shape in SHAPES.items():
            steps = _train(folder / "data", shape, options.steps)
            rows[name] = {"doubted": _doubted(steps), "of": len(steps) - len(steps) // 10, "seen": _seen(steps)}
            print(name, json.dumps(rows[name]), flush=True)
    write_results(options.out, "screen", rows=rows)


def _train(corpus: Path, shape: Shape, steps: int) -> list[Step]:
    """Return what every replica contributed, step by step."""
    data = read_corpus(corpus)
    size = {"vocab_size": data.vocab_size, "dim": shape.dim, "layers": 4, "heads": 4, "kv_heads": 2}
    model = ModelSection.model_validate({**size, "ffn_dim": 2 * shape.dim, "context": 64, "cuts": (2,)})
    batch = BatchSection(microbatches=shape.microbatches, sequences=shape.sequences, sequence_length=64)
    manifest = RunFile(run=RunSection(steps=steps), model=model, batch=batch).resolve(data)
    reader, draw = CorpusReader(corpus, manifest), Random(0)
    modules = [build_stage(model, stage, device="cpu", seed=0) for stage in range(STAGES)]
    parameters = [dict(module.named_parameters()) for module in modules]
    layouts = [Layout.of(each, with_loss=False) for each in parameters]
    everything = [parameter for each in parameters for parameter in each.values()]
    optimizer = torch.optim.AdamW(everything, lr=shape.rate, betas=(0.9, 0.95))
    speeds = [draw.choice((1.0, 1.0, 2.0)) for _ in range(shape.replicas)]
    found: list[Step] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = shape.rate * min(1.0, (step + 1) / 20)
        owners = [[_owner(draw, speeds) for _ in range(shape.microbatches)] for _ in modules]
        shares = [[Accumulator(layout, SumSection()) for _ in speeds] for layout in layouts]
        total = [torch.zeros_like(parameter) for parameter in everything]
        for m in range(shape.microbatches):
            tokens = torch.from_numpy(reader.microbatch(step, m).astype("int64"))
            loss = modules[1].loss_sum(modules[1](modules[0](tokens[:, :-1])), tokens[:, 1:])
            gradients = torch.autograd.grad(loss, everything)
            torch._foreach_add_(total, gradients)
            split = len(parameters[0])
            for stage, part in enumerate((gradients[:split], gradients[split:])):
                shares[stage][owners[stage][m]].add(part)
        for parameter, gradient in zip(everything, total, strict=True):
            parameter.grad = gradient / batch.tokens_per_step
        torch.nn.utils.clip_grad_norm_(everything, 1.0)
        optimizer.step()
        found.append(tuple(_sketched(shares[s], owners[s], layouts[s], f"{step} {s}") for s in range(STAGES)))
    return found


def _owner(draw: Random, speeds: list[float]) -> int:
    return draw.choices(range(len(speeds)), speeds)[0]


def _sketched(shares: list[Accumulator], owners: list[int], layout: Layout, seed: str) -> tuple[OwnSums, ...]:
    sums = []
    for place, share in enumerate(shares):
        if count := owners.count(place):
            (sketch,) = sketch_of(share.numbers, slice(0, layout.length), CPU, seed)
            sums.append(OwnSums(Actor(f"peer{place}", 1), count, sketch))
    return tuple(sums)


def _doubted(steps: list[Step]) -> int:
    screen, doubted = Screen(), 0
    for number, step in enumerate(steps):
        doubted += number >= len(steps) // 10 and bool(screen.doubts(step))
        screen.decided(step)
    return doubted


def _seen(steps: list[Step]) -> dict[str, float]:
    """For each factor, the share of the steps with a lie in which any peer of the liar's stage is doubted."""
    screen, half = Screen(), len(steps) // 2
    for step in steps[:half]:
        screen.decided(step)
    seen = dict.fromkeys(FACTORS, 0)
    for step in steps[half:]:
        for factor in FACTORS:
            seen[factor] += bool(screen.doubts((*step[:-1], (_lying(step[-1][0], factor), *step[-1][1:]))))
        screen.decided(step)
    return {f"×{factor:g}": round(count / (len(steps) - half), 3) for factor, count in seen.items()}


def _lying(sums: OwnSums, factor: float) -> OwnSums:
    return replace(sums, sketch=tuple(int(number * factor) for number in sums.sketch))


if __name__ == "__main__":
    main()
