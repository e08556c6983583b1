"""Measures how compressed averaging changes the loss: the same run with each codec between the replicas of a stage.

    python -m benchmarks.averaging [--codecs "none;int8;int4"] [--replicas 2] [--steps 300]

Each row is trained in one process, in the same way as `reference` repeats a swarm whose replicas never die: the
replicas get microbatches in turn, and residuals are kept from the second step on. The loss is held-out, in nats per
token.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from benchmarks.trained import undisturbed
from peers.run.reference import ReferenceModel
from peers.run.resolved_run import ResolvedRun, resolve_run
from swarm.compute.averaging import sent_bytes
from swarm.compute.layout import Layout
from swarm.data.reader import CorpusReader
from swarm.manifest import RunManifest

RUN = """
[run]
name = "averaging"
[audit]
every = 0
[model]
vocab_size = 2048
heads = 4
kv_heads = 4
layers = 4
context = 128
cuts = [2]
[batch]
microbatches = 8
sequences = 4
sequence_length = 128
[optimizer]
learning_rate = 3e-3
warmup_steps = 10
[codec]
forward = "none"
backward = "none"
[evaluation]
microbatches = 16
"""
CODECS = ("none", "bf16", "int8", "int4", "int2", "topk:0.1", "powersgd:4")


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    with folder_with_corpus("averaging", options.data, vocab_size=2048) as folder:
        rows = measure(options, folder)
    write_results(options.out, "averaging", rows=rows)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="a prepared corpus of 2,048 tokens; else one is prepared")
    made.add_argument("--codecs", default=";".join(CODECS), help="some of them, with ; between")
    made.add_argument("--replicas", type=int, default=2)
    made.add_argument("--dim", type=int, default=64)
    made.add_argument("--steps", type=int, default=300)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--out", type=Path)
    return made


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """A row for each codec. `folder` contains a corpus in `data`."""
    path = folder / "RUN.toml"
    path.write_text(RUN)
    sets = (f"model.dim={options.dim}", f"model.ffn_dim={options.dim * 8 // 3 // 8 * 8}", f"run.steps={options.steps}")
    rows = []
    for codec in options.codecs.split(";"):
        run = resolve_run(path, (*sets, f"run.seed={options.seed}", f"sums.averaging={codec}"))
        rows.append(_measure(run, codec, options.replicas))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _measure(run: ResolvedRun, codec: str, replicas: int) -> dict[str, object]:
    manifest = run.manifest
    reader, model = CorpusReader(run.corpus, manifest), ReferenceModel(manifest)
    began = time.process_time()
    for step in range(manifest.run.steps):
        model.train(step, reader, undisturbed(manifest, replicas, step))
    return {
        "averaging": codec,
        "replicas": replicas,
        "bytes a parameter": round(_bytes(manifest), 3) if manifest.sums.compresses else None,
        "steps": manifest.run.steps,
        "loss": round(model.heldout_loss(reader), 4),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _bytes(manifest: RunManifest) -> float:
    """Bytes of the sums of all stages, sent once, divided by the number of parameters."""
    layouts = [Layout.of_stage(manifest.model, stage) for stage in range(manifest.model.stages)]
    return sum(sent_bytes(layout, manifest.sums) for layout in layouts) / sum(layout.length for layout in layouts)


if __name__ == "__main__":
    main()
