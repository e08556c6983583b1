"""Step time of the real protocol over real libp2p, with compute emulated by a calibrated sleep, against the ideal.

    python -m benchmarks.emulated [--stages 4,8,16] [--replicas 1,2] [--forward-ms 100] [--backward-ms 200]

The ideal of a synchronous pipeline is (M/R + S − 1)(t_f + t_b) + reduce bytes / rate. Frames have the real size
(1,024 tokens × 512 int8 values). Figures are medians of the steps after the first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.arguments import at_least, each
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results

RUN = """
[run]
name = "emulated"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = 512
layers = {stages}
heads = 8
kv_heads = 4
ffn_dim = 512
context = 256
cuts = {cuts}
[batch]
microbatches = {microbatches}
sequences = 4
sequence_length = 256
[codec]
forward = "int8"
backward = "int8"
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = {replicas}
[timing]
step_budget_s = 120.0
"""
REDUCE_BYTES_PER_S = 300e6
"""Measured rate of loopback streams on two virtual cores, sending and receiving together."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=each(at_least(1), ","), default="4,8,16")
    parser.add_argument("--replicas", type=each(at_least(1), ","), default="1,2")
    parser.add_argument("--microbatches", type=int, default=32, help="per replica of a stage")
    parser.add_argument("--forward-ms", type=float, default=100.0)
    parser.add_argument("--backward-ms", type=float, default=200.0)
    parser.add_argument("--parameters", type=int, default=1 << 20, help="of a stage: what the reduce carries")
    parser.add_argument("--max-rate", help="of every peer, such as 80Mbit; the ideal knows nothing of it")
    parser.add_argument("--steps", type=at_least(2), default=4, help="the first is not counted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with folder_with_corpus("emulated") as folder:
        for stages in map(int, options.stages.split(",")):
            for replicas in map(int, options.replicas.split(",")):
                rows.append(_row(folder, options, stages, replicas))
                print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "emulated", rows=rows)


def _row(folder: Path, options: argparse.Namespace, stages: int, replicas: int) -> dict[str, float]:
    path = folder / f"RUN-{stages}x{replicas}.toml"
    path.write_text(
        RUN.format(
            steps=options.steps,
            stages=stages,
            cuts=list(range(1, stages)),
            microbatches=options.microbatches * replicas,
            replicas=replicas,
        )
    )
    forward_s, backward_s = options.forward_ms / 1000, options.backward_ms / 1000
    words = [*script("emulated_peer"), str(forward_s), str(backward_s)]
    words.append(str(options.parameters))
    if options.max_rate is not None:
        words += ["--max-rate", options.max_rate]
    with LocalSwarm(folder / f"swarm-{stages}x{replicas}", path, [words] * (stages * replicas)) as swarm:
        swarm.finish(1800)
        seconds = swarm.step_seconds(options.steps)
    # reduce-scatter and all-gather of sums, 8 bytes each before packing: (R − 1)/R of the vector out, and in, twice
    reduce_s = 2 * (replicas - 1) / replicas * options.parameters * 8 / REDUCE_BYTES_PER_S
    ideal = (options.microbatches + stages - 1) * (forward_s + backward_s) + reduce_s
    return {
        "stages": stages,
        "replicas": replicas,
        "step_s": round(seconds, 3),
        "ideal_s": round(ideal, 3),
        "efficiency": round(ideal / seconds, 3),
    }


if __name__ == "__main__":
    main()
