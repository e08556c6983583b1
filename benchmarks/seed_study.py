"""Tests the findings of the studies from which this project grew, on a small task: digits, with a model cut into four.

    python -m benchmarks.seed_study [--rows "topk 10 %;int2"] [--seeds 0,1,2] [--docs docs/seed-study.md]

Rudakov et al. (arXiv 2401.07788) compressed what crosses the cuts of a ResNet. This is a small version of their
setting: a residual classifier of 8 × 8 digits, three cuts, eleven epochs (several are needed for AQ-SGD, arXiv
2206.01299, which sends changes since the last epoch). Each row is trained in one process with `swarm-peer reference`'s
code, or read from `--cache`. Losses are held-out, in nats per image, at the end; `off`: without the codecs at
inference.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.local_swarm import PEERS
from benchmarks.page import put_table
from benchmarks.trained import Trained, trained
from peers.run.resolved_run import resolve_run

RUN = """
[run]
name = "seed-study"
steps = 120
[audit]
every = 0
[model]
kind = "resnet"
vocab_size = 17
dim = 32
layers = 8
classes = 10
context = 64
cuts = [2, 4, 6]
[batch]
microbatches = 2
sequences = 64
sequence_length = 64
order = "steps"
[optimizer]
learning_rate = 3e-3
warmup_steps = 10
[evaluation]
every = 40
microbatches = 5
sample_tokens = 0
"""
_TWO = "swarm.replicas=2"
ROWS: dict[str, tuple[str, ...]] = {
    "none": ("none", "none"),
    "none, averaging int4": ("none", "none", _TWO, "sums.averaging=int4"),
    "int8": ("int8", "int8"),
    "int8, averaging int8": ("int8", "int8", _TWO, "sums.averaging=int8"),
    "int4": ("int4", "int4"),
    "int4, averaging int4": ("int4", "int4", _TWO, "sums.averaging=int4"),
    "int4 forward, none back": ("int4", "none"),
    "none forward, int4 back": ("none", "int4"),
    "none forward, log4 back": ("none", "log4"),
    "int2 forward, none back": ("int2", "none"),
    "none forward, int2 back": ("none", "int2"),
    "topk 30 %, shared mask": ("topk:0.3", "topk-shared"),
    "topk 10 %, shared mask": ("topk:0.1", "topk-shared"),
    "topk 5 %, shared mask": ("topk:0.05", "topk-shared"),
    "topk 2 %, shared mask": ("topk:0.02", "topk-shared"),
    "topk 30 %, independent masks": ("topk:0.3", "topk-independent:0.3"),
    "topk 10 %, independent masks": ("topk:0.1", "topk-independent:0.1"),
    "topk 10 % forward, none back": ("topk:0.1", "none"),
    "none forward, topk 30 % back": ("none", "topk-independent:0.3"),
    "none forward, topk 10 % back": ("none", "topk-independent:0.1"),
    "int4 forward, int8 back": ("int4", "int8"),
    "delta:4 forward, int8 back": ("delta:4", "int8"),
    "delta:4 forward, int8 back, averaging int8": ("delta:4", "int8", _TWO, "sums.averaging=int8"),
    "delta:4 forward, int4 back, averaging int4": ("delta:4", "int4", _TWO, "sums.averaging=int4"),
    "int2 forward, int8 back": ("int2", "int8"),
    "delta:2 forward, int8 back": ("delta:2", "int8"),
    "topk 10 % forward, int8 back": ("topk:0.1", "int8"),
    "delta:topk 10 % forward, int8 back": ("delta:topk:0.1", "int8"),
    "ef21:topk 10 % forward, int8 back": ("ef21:topk:0.1", "int8"),
    "ef21:2 forward, int8 back": ("ef21:2", "int8"),
    "ef:topk 10 % forward, int8 back": ("ef:topk:0.1", "int8"),
    "ef:topk 10 %, shared mask": ("ef:topk:0.1", "topk-shared"),
    "ef-mixed:topk 10 % forward, int8 back": ("ef-mixed:topk:0.1", "int8"),
}
"""Forward and backward codec of each row, and further keys. Averaging is compressed between two replicas."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names separated by ';' (default: all)")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/seed_study"))
    parser.add_argument("--docs", type=Path, help="write the table between the markers of this page")
    options = parser.parse_args()
    names = options.rows.split(";") if options.rows else list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row named {unknown[0]!r}: there are {'; '.join(ROWS)}")
    rows = study(names, [int(seed) for seed in options.seeds.split(",")], options.steps, options.cache)
    for row in rows:
        print(json.dumps(row))
    if options.docs is not None:
        put_table(options.docs, "seed_study", markdown(rows))


def study(names: Sequence[str], seeds: Sequence[int], steps: int, cache: Path) -> list[dict[str, object]]:
    """A row of the table for each of `names`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="seed-study-") as folder:
        path = Path(folder) / "RUN.toml"
        path.write_text(RUN)
        prepare = [*PEERS, "prepare", "--images", "digits", "--out", str(path.parent / "data")]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        rows = []
        for name in names:
            forward, backward, *others = ROWS[name]
            sets = (f"codec.forward={forward}", f"codec.backward={backward}", f"run.steps={steps}", *others)
            runs = [resolve_run(path, (*sets, f"run.seed={seed}")) for seed in seeds]
            found = [made for run in runs if (made := trained(run, name, cache)) is not None]
            rows.append(_row(name, found))
            print(f"{name}: {rows[-1]['loss']}", flush=True)
    return rows


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    lines = ["| forward and back | loss | from … to | codecs off at inference |", "|---|---|---|---|"]
    for row in rows:
        loss, least, most, off = (_shown(row[key]) for key in ("loss", "least", "most", "off"))
        lines.append(f"| {row['row']} | {loss} | {least} … {most} | {off} |")
    return "\n".join(lines) + "\n"


def _shown(loss: object) -> str:
    return "diverged" if loss == math.inf else f"{loss:.2f}"


def _row(name: str, runs: Sequence[Trained]) -> dict[str, object]:
    final = [run.loss[-1] for run in runs]
    return {
        "row": name,
        "seeds": [run.seed for run in runs],
        "loss": round(statistics.mean(final), 4),
        "least": round(min(final), 4),
        "most": round(max(final), 4),
        "off": round(statistics.mean(run.loss_uncoded for run in runs), 4),
    }


if __name__ == "__main__":
    main()
