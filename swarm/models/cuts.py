"""Proposes cuts that give stages of equal measured cost, with the cost of the embedding and the head."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage

_MOST_REPEATS, _ENOUGH_S = 20, 1.0
"""So many repeats, or so many seconds of them, are enough for a measurement."""


@dataclass(frozen=True)
class Costs:
    """Cost of each part for the forward and backward of one microbatch, in any common unit (seconds, FLOP)."""

    embed: float
    layer: float
    head: float


def propose_cuts(model: ModelSection, stages: int, costs: Costs) -> tuple[int, ...]:
    """The first layers of stages 1 … stages−1, so that the largest cost of a stage is minimal and the others even."""
    if not 1 <= stages <= model.layers:
        raise ValueError(
            f"cannot cut model.layers = {model.layers} into {stages} stages: use 1 to {model.layers} stages"
        )
    layers = [costs.layer] * model.layers
    layers[0] += costs.embed
    layers[-1] += costs.head
    return _balance(layers, stages)


def stage_costs(model: ModelSection, costs: Costs) -> tuple[float, ...]:
    """The cost of each stage with the model's present cuts."""
    each = [costs.layer * len(model.layer_range(stage)) for stage in range(model.stages)]
    each[0] += costs.embed
    each[-1] += costs.head
    return tuple(each)


def measure_costs(model: ModelSection, sequences: int, sequence_length: int, repeats: int = 3) -> Costs:
    """Seconds on this machine's CPU, with torch's current number of threads; the minimum of at least `repeats` runs.

    It measures the three stages of a three-layer model: embedding + layer, layer, layer + head. They take turns, and
    small ones are repeated more often, because other programs may keep the machine busy for a moment. The modules at
    the cuts are left out, because their cost is equal in all stages but the first.
    """
    shape = {"layers": 3, "cuts": (1, 2), "tail_layers": min(1, model.tail_layers)}
    plain = {"boundary": "none", "boundary_dim": 0, "receiver_hidden": 0, "token_table_dim": 0}
    three = model.model_copy(update={**shape, **plain})
    stages = [_Stage(three, stage, sequences, sequence_length) for stage in range(3)]
    rounds: list[list[float]] = []
    begun = time.perf_counter()
    while len(rounds) <= repeats or (len(rounds) <= _MOST_REPEATS and time.perf_counter() - begun < _ENOUGH_S):
        rounds.append([stage.seconds() for stage in stages])
    # without the first round, which also allocates memory
    embed, layer, head = (min(each) for each in zip(*rounds[1:], strict=True))
    return Costs(embed=max(0.0, embed - layer), layer=layer, head=max(0.0, head - layer))


def flop_costs(model: ModelSection, sequence_length: int) -> Costs:
    """FLOP per token or pixel, forward and backward, if nothing can be measured."""
    if model.kind == "resnet":
        return Costs(embed=6.0 * 9 * model.dim, layer=6.0 * 2 * 9 * model.dim**2, head=0.0)
    head_dim = model.dim // model.heads
    weights = model.dim * (head_dim * (model.heads + 2 * model.kv_heads) + 2 * model.ffn_dim)
    written = model.residual_width(model.layers // 2)  # by the layer in the middle
    weights += written * (head_dim * model.heads + model.ffn_dim)
    attention = 2 * model.heads * head_dim * sequence_length / 2  # scores and values, causal half
    return Costs(
        embed=2.0 * model.dim,  # two adds a channel
        layer=6.0 * (weights + attention),
        head=6.0 * model.dim * model.vocab_size,
    )


def _balance(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """The starts of parts 1, 2, … of the best division into contiguous parts: the one with the least maximum cost, then
    the least sum of squares.
    """
    total = (0.0, *itertools.accumulate(costs))
    count = len(costs)
    infinity = float("inf")
    least = [[infinity] * (count + 1) for _ in range(parts + 1)]  # [parts][items]: least possible maximum
    least[0][0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, count + 1):
            least[part][end] = min(
                max(least[part - 1][start], total[end] - total[start]) for start in range(part - 1, end)
            )
    limit = least[parts][count] * (1 + 1e-9)
    best: list[list[tuple[float, tuple[int, ...]]]] = [[(infinity, ())] * (count + 1) for _ in range(parts + 1)]
    best[0][0] = (0.0, ())
    for part in range(1, parts + 1):
        for end in range(part, count + 1):
            best[part][end] = min(
                (best[part - 1][start][0] + cost**2, (*best[part - 1][start][1], start))
                for start in range(part - 1, end)
                if (cost := total[end] - total[start]) <= limit or start == end - 1
            )
    return best[parts][count][1][1:]


class _Stage:
    """One stage and its inputs."""

    def __init__(self, model: ModelSection, stage: int, sequences: int, length: int) -> None:
        self._module = module = build_stage(model, stage, seed=0)
        module.make_room(length)
        self._tokens = torch.zeros((sequences, length), dtype=torch.int64)
        self._x = self._tokens
        if not module.first:
            self._x = torch.randn(sequences, length, model.boundary_width(stage), requires_grad=True)
        self._sources = [*(() if module.first else (self._x,)), *module.parameters()]

    def seconds(self) -> float:
        """Seconds of the forward and backward of one microbatch."""
        module, start = self._module, time.perf_counter()
        out = module(self._x, self._tokens)
        if module.last:
            torch.autograd.grad(module.loss_sum(out, self._tokens), self._sources)
        else:
            torch.autograd.grad(out, self._sources, torch.ones_like(out))
        return time.perf_counter() - start
