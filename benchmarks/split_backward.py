"""Measures what splitting a backward costs: both halves of a real backward against the whole one, as a ratio.

    python -m benchmarks.split_backward [--dims 256,512,1024] [--pairs 15] [--out FILE]

A stage has two Llama layers, one thread, 4 × 256 tokens. `stage` is a middle stage, `last` the stage with head and
loss. The whole backward is what a peer with `--schedule synchronous` computes: autograd over layers of torch. Both add
the gradients to exact sums. The ratio is the median over pairs that are computed one after the other.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.arguments import at_least
from benchmarks.results import write_results
from peers.stage.heap import keep_freed_memory
from swarm.compute.due_weights import Due
from swarm.compute.host_copy import HostCopy
from swarm.compute.layout import Layout
from swarm.compute.sums import Accumulator
from swarm.manifest import ModelSection, SumSection
from swarm.models.kinds import build_stage
from swarm.models.split_backward import SplitBackward
from swarm.models.stage_module import StageModule

AIM = 1.03
SEQUENCES, LENGTH = 4, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="256,512,1024")
    parser.add_argument("--pairs", type=at_least(1), default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()  # as a peer does
    torch.set_num_threads(1)
    rows = []
    for dim in map(int, options.dims.split(",")):
        for name, stage in (("stage", 1), ("last", 2)):
            rows.append({"dim": dim, "of": name, **measure(dim, stage, options.pairs)})
            print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "split_backward", rows=rows)


def measure(dim: int, stage: int, pairs: int) -> dict[str, float]:
    model = ModelSection(
        vocab_size=4096,
        dim=dim,
        layers=6,
        heads=8,
        kv_heads=4,
        ffn_dim=dim * 8 // 3 // 32 * 32,
        context=LENGTH,
        cuts=(2, 4),
    )
    whole, halves = _Side(model, stage, split=False), _Side(model, stage, split=True)
    for side in (whole, halves):
        side.backward_s()  # allocates
    times = [(whole.backward_s(), halves.backward_s()) for _ in range(pairs)]
    ratio = median(b / a for a, b in times)
    first = median(halves.first_half_s[1:])
    return {
        "whole_ms": round(1000 * median(a for a, _ in times), 1),
        "halves_ms": round(1000 * median(b for _, b in times), 1),
        "first_half_ms": round(1000 * first, 1),
        "ratio": round(ratio, 3),
        "met": ratio <= AIM,
    }


class _Side:
    def __init__(self, model: ModelSection, stage: int, *, split: bool) -> None:
        self._module: StageModule = build_stage(model, stage, seed=1)
        self._split = SplitBackward() if split else None
        if self._split is not None:
            self._split.attach(self._module)
        self._parameters = tuple(self._module.parameters())
        layout = Layout.of(dict(self._module.named_parameters()), with_loss=self._module.last)
        self._sums = Accumulator(layout, SumSection())
        draw = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(0, model.vocab_size, (SEQUENCES, LENGTH), generator=draw)
        self._x = torch.randn(SEQUENCES, LENGTH, model.widest_boundary, generator=draw)
        self.first_half_s: list[float] = []

    def backward_s(self) -> float:
        """CPU seconds of a backward, up to the sums. Other work on this machine does not count."""
        source = self._x.clone().requires_grad_()
        output: Tensor = self._module(source, self._tokens)
        loss = None
        if self._module.last:
            output = self._module.loss_sum(output, self._tokens)
            loss = HostCopy(output.detach())
        gradient = None if self._module.last else torch.ones_like(output)
        of = (source, *self._parameters)
        began = time.thread_time()
        if self._split is None:
            found = list(torch.autograd.grad(output, of, gradient)[1:])
        else:
            with self._split.splitting() as kept:
                due = Due(torch.autograd.grad(output, of, gradient, allow_unused=True)[1:], kept, loss)
            self.first_half_s.append(time.thread_time() - began)
            found = due.computed(self._parameters)
        self._sums.add([each for each in found if each is not None], None if loss is None else loss.wait().item())
        return time.thread_time() - began


if __name__ == "__main__":
    main()
