"""What the exact sums of a real model cost on the wire, grid by grid: bytes per parameter, time, and loss.

    python -m benchmarks.exact_sums [--grids 30,24,20,16,12] [--steps 60]

Each grid trains the same small model on the same tokens in one process; what replicas would send of every stage's sums
is packed and unpacked at the end. Loss is held-out, in nats per token. Raw fp64 takes 8 bytes a parameter, fp32 4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from peers.run.reference import ReferenceModel
from peers.run.resolved_run import resolve_run
from swarm.compute import packing
from swarm.data.reader import CorpusReader

RUN = """
[run]
name = "exact-sums"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = 128
layers = 4
heads = 4
kv_heads = 4
ffn_dim = 336
context = 128
cuts = [1, 2, 3]
[batch]
microbatches = 8
sequences = 8
sequence_length = 128
[optimizer]
learning_rate = 3e-3
warmup_steps = 10
[codec]
forward = "int8"
backward = "int8"
[sums]
grid_bits = {grid_bits}
[evaluation]
microbatches = 8
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", default="30,24,20,16,12")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with folder_with_corpus("exact-sums") as folder:
        for grid_bits in map(int, options.grids.split(",")):
            rows.append(_row(folder, options.steps, grid_bits))
            print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "exact_sums", rows=rows)


def _row(folder: Path, steps: int, grid_bits: int) -> dict[str, object]:
    path = folder / "RUN.toml"
    path.write_text(RUN.format(steps=steps, grid_bits=grid_bits))
    run = resolve_run(path)
    reader = CorpusReader(run.corpus, run.manifest)
    model = ReferenceModel(run.manifest)
    for step in range(steps):
        model.train(step, reader)
    sums = [each.reduced().numpy() for each in model._sums]
    sizes, pack_ns, unpack_ns = [], [], []
    for flat in sums:
        start = time.thread_time()
        packed = packing.pack(flat, grid_bits)
        half = time.thread_time()
        packing.unpack(packed, len(flat), grid_bits, flat)
        sizes.append(len(packed))
        pack_ns.append((half - start) / len(flat) * 1e9)
        unpack_ns.append((time.thread_time() - half) / len(flat) * 1e9)
    count = sum(map(len, sums))
    return {
        "grid_bits": grid_bits,
        "bytes per parameter": round(sum(sizes) / count, 2),
        "by stage": [round(size / len(flat), 2) for size, flat in zip(sizes, sums, strict=True)],
        "pack, ns per parameter": round(statistics.median(pack_ns), 1),
        "unpack, ns per parameter": round(statistics.median(unpack_ns), 1),
        "rms of the sums": round(
            float(sum((flat.astype(float) ** 2).sum() for flat in sums) / count) ** 0.5 * 2.0**-grid_bits, 3
        ),
        "loss": round(model.heldout_loss(reader), 4),
    }


if __name__ == "__main__":
    main()
