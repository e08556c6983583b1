"""Measures what the exact sums of a real model cost on the wire for each grid: bits per parameter, time, and loss.

    python -m benchmarks.exact_sums [--grids "30;24;20;16;12;dither:1"] [--microbatches 8] [--steps 60]

Each grid trains the same small model on the same tokens in one process. In the last step, two replicas have half of the
microbatches each, and what they would send of every stage's sums is encoded and decoded. The loss is held-out, in nats
per token. For comparison: raw fp64 takes 64 bits per parameter, fp32 32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from peers.run.averaged_sums import AveragedSums
from peers.run.reference import ReferenceModel
from peers.run.resolved_run import resolve_run
from swarm.compute.averaging import buckets_of
from swarm.compute.dithered import DitheredBuckets
from swarm.compute.sums import Accumulator
from swarm.data.reader import CorpusReader
from swarm.manifest import RunManifest

RUN = """
[run]
name = "exact-sums"
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
sequence_length = 128
[optimizer]
learning_rate = 3e-3
warmup_steps = 10
[codec]
forward = "int8"
backward = "int8"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", default="30;24;20;16;12;dither:1", help="grid_bits, or an averaging, with ; between")
    parser.add_argument("--microbatches", type=int, default=8, help="of a step, of all replicas")
    parser.add_argument("--sequences", type=int, default=8, help="of a microbatch")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--heldout", type=int, default=64, help="sequences to evaluate on; a multiple of --sequences")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.heldout < 1 or options.heldout % options.sequences:
        parser.error(f"--heldout {options.heldout} is not a multiple of --sequences {options.sequences}")
    torch.set_num_threads(1)
    rows = []
    with folder_with_corpus("exact-sums") as folder:
        for grid in options.grids.split(";"):
            rows.append(_row(folder, options, grid))
            print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "exact_sums", rows=rows)


def _row(folder: Path, options: argparse.Namespace, grid: str) -> dict[str, object]:
    path = folder / "RUN.toml"
    path.write_text(RUN)
    sums = f"sums.averaging={grid}" if grid.startswith("dither") else f"sums.grid_bits={grid}"
    batch = (f"batch.microbatches={options.microbatches}", f"batch.sequences={options.sequences}")
    heldout = f"evaluation.microbatches={options.heldout // options.sequences}"
    run = resolve_run(path, (f"run.steps={options.steps}", *batch, heldout, sums))
    reader = CorpusReader(run.corpus, run.manifest)
    model = ReferenceModel(run.manifest)
    for step in range(options.steps - 1):
        model.train(step, reader)
    replicas = [_Replicas(run.manifest, each) for each in model._sums]
    model.train(options.steps - 1, reader)
    sent = [each.send() for each in replicas]
    count = sum(each.length for each in replicas)

    def bits(directions: Sequence[str]) -> float:
        return round(8 * statistics.mean(sum(each[one] for each in sent) for one in directions) / count, 2)

    return {
        "grid": grid,
        "microbatches": options.microbatches,
        "steps": options.steps,
        "held-out sequences": options.heldout,
        "bits per parameter, mean of both directions": bits(("part", "total")),
        "of a part": bits(("part",)),
        "of a total": bits(("total",)),
        "encode, ns per parameter": round(sum(each["encode_s"] for each in sent) / count * 1e9, 1),
        "decode, ns per parameter": round(sum(each["decode_s"] for each in sent) / count * 1e9, 1),
        "loss": round(model.heldout_loss(reader), 4),
    }


class _Replicas:
    """Two replicas of a stage. They add the microbatches of one step in turn, beside the reference."""

    def __init__(self, manifest: RunManifest, sums: AveragedSums) -> None:
        """The grid is that of the next step: `sums` changes it."""
        self.length = sums.layout.length
        self._manifest, self._sums, self._grid = manifest, sums, sums._grid
        self._added = [Accumulator(sums.layout, manifest.sums, grid=self._grid) for _ in range(2)]
        self._add = sums.add
        sums.add = self._tee  # type: ignore[method-assign]

    def send(self) -> dict[str, float]:
        """Bytes of a part and of a total, with each bucket's head once, and the seconds in which a replica encodes and
        decodes one.
        """
        buckets = buckets_of(self._sums.layout, self._manifest.sums)
        total = self._sums.reduced()
        found = dict.fromkeys(("part", "total", "encode_s", "decode_s"), 0.0)
        for bucket, where in enumerate(buckets.slices):
            for kind, numbers in (("part", self._added[0].numbers(where)), ("total", total[where])):
                began = time.thread_time()
                if isinstance(buckets, DitheredBuckets):
                    assert self._grid is not None
                    lowered = self._grid.lowered(numbers, where, total=kind == "total")
                    payload = buckets.write_bucket(bucket, lowered)
                else:
                    payload = buckets.write(numbers)
                encoded = time.thread_time()
                read = buckets.read(bucket, payload)
                if self._grid is not None:
                    self._grid.raised(read, where, total=kind == "total")
                found["decode_s"] += (time.thread_time() - encoded) / 2
                found["encode_s"] += (encoded - began) / 2
                found[kind] += len(payload)
        return found

    def _tee(self, m: int, gradients: Sequence[Tensor], loss: float | None) -> None:
        self._add(m, gradients, loss)
        self._added[m % 2].add(gradients, loss, step=self._sums._step, microbatch=m)


if __name__ == "__main__":
    main()
