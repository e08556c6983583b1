"""One process of benchmarks/throughput.py that trains alone. It records when it begins each microbatch, until it is
killed.

    python -m benchmarks.reference_worker RUN.toml THREADS NOTES reference|plain

`reference`: peers/run/reference.py. `plain`: what anybody would write in torch: the same layers, `backward` into
`.grad`, and torch's AdamW; no exact sums, no digests.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from peers.run.reference import TrainingData, train_reference
from peers.run.resolved_run import resolve_run
from swarm.compute.arithmetic import Arithmetic
from swarm.data.reader import CorpusReader
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage


class NotingReader:
    """Appends a line with the unix time to `notes` when a microbatch is read, which is when its computation begins."""

    def __init__(self, reader: CorpusReader, notes: Path) -> None:
        self._reader = reader
        self._notes = notes.open("a", buffering=1)

    def microbatch(self, step: int, m: int) -> np.ndarray:
        self._notes.write(f"{time.time()}\n")
        return self._reader.microbatch(step, m)


def train_plain(manifest: RunManifest, data: TrainingData, threads: int) -> None:
    torch.set_num_threads(threads)
    device, section = torch.device("cpu"), manifest.optimizer
    stages = [
        build_stage(manifest.model, s, device=device, seed=manifest.run.seed) for s in range(manifest.model.stages)
    ]
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, section.learning_rate, (section.beta1, section.beta2), section.eps, section.weight_decay
    )
    for step in range(manifest.run.steps):
        for m in range(manifest.batch.microbatches):
            tokens = torch.from_numpy(data.microbatch(step, m))
            inputs, labels = (each.contiguous() for each in (tokens[:, :-1], tokens[:, 1:]))
            x = inputs
            for stage in stages[:-1]:
                x = stage(x, inputs)
            loss = stages[-1].loss_sum(stages[-1](x, inputs), labels)
            (loss / manifest.targets_per_step).backward()
        torch.nn.utils.clip_grad_norm_(parameters, section.clip_norm)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    run = resolve_run(Path(sys.argv[1]))
    threads, notes, kind = int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    reader = NotingReader(CorpusReader(run.corpus, run.manifest), notes)
    if kind == "plain":
        train_plain(run.manifest, reader, threads)
    else:
        train_reference(run.manifest, reader, arithmetic=Arithmetic.of("cpu", threads))
