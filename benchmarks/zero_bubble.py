"""Compares the zero-bubble with the synchronous schedule: the real protocol over real libp2p, with emulated compute.

    python -m benchmarks.zero_bubble [--stages 4,8,16] [--replicas 1,2] [--pairs 3] [--out FILE]

There is one swarm for each shape. In every second step, half of each backward, the weights' gradients, waits until
there is nothing else to do; so both schedules run under the same conditions. A forward takes one unit, a backward two.
The first pair of steps is not counted. `speedup` is the median over the pairs of synchronous ÷ zero-bubble seconds.
`of_model` compares the measured rate with that of `peers/run/pipeline_model.py`, which ignores messages, the reduce and
the decision.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from benchmarks.arguments import at_least, each
from benchmarks.corpus import folder_with_corpus
from benchmarks.emulated import RUN
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results
from peers.run.pipeline_model import BACKWARD, step_units

AIMS = {4: 1.04, 8: 1.10, 16: 1.20}
"""The least `speedup` that is the target, by number of stages."""
OF_MODEL = 0.95
PARAMETERS = 1 << 14
"""Number of parameters of a stage. It is small, because the reduce is not studied here."""
UNIT_S = 0.0125
"""Seconds of a forward for each peer on the machine. A few peers share a core, which is enough for all but the
sleep.
"""
LEAST_UNIT_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=each(at_least(1), ","), default="4,8,16")
    parser.add_argument("--replicas", type=each(at_least(1), ","), default="1,2")
    parser.add_argument("--microbatches", type=int, default=32, help="per replica of a stage")
    parser.add_argument("--pairs", type=at_least(1), default=3, help="of a synchronous and a zero-bubble step")
    parser.add_argument("--unit-ms", type=float, help="of a forward; by default more, the more peers there are")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with folder_with_corpus("zero-bubble") as folder:
        for stages in map(int, options.stages.split(",")):
            for replicas in map(int, options.replicas.split(",")):
                rows.append(measure(folder, options, stages, replicas))
                print(json.dumps(rows[-1]), flush=True)
                write_results(options.out, "zero_bubble", rows=rows)


def measure(folder: Path, options: argparse.Namespace, stages: int, replicas: int) -> dict[str, object]:
    steps = 2 * (options.pairs + 1)
    path = folder / f"RUN-{stages}x{replicas}.toml"
    path.write_text(
        RUN.format(
            steps=steps,
            stages=stages,
            cuts=list(range(1, stages)),
            microbatches=options.microbatches * replicas,
            replicas=replicas,
        )
    )
    unit_s = max(LEAST_UNIT_S, UNIT_S * stages * replicas) if options.unit_ms is None else options.unit_ms / 1000
    words = [
        *script("emulated_peer"),
        str(unit_s),
        str(BACKWARD * unit_s),
        str(PARAMETERS),
        "--zero-bubble",
        "odd-steps",
    ]
    with LocalSwarm(folder / f"swarm-{stages}x{replicas}", path, [words] * (stages * replicas)) as swarm:
        swarm.finish(3600)
        seconds = swarm.seconds_by_step(steps)[2:]
    whole, split = seconds[::2], seconds[1::2]
    ideal = [unit_s * step_units(stages, options.microbatches, zero_bubble=split) for split in (False, True)]
    ratios = [a / b for a, b in zip(whole, split, strict=True)]
    return {
        "stages": stages,
        "replicas": replicas,
        "unit_ms": round(1000 * unit_s, 1),
        "synchronous_s": round(median(whole), 3),
        "zero_bubble_s": round(median(split), 3),
        "speedup": round(median(ratios), 3),
        "speedup_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "model_speedup": round(ideal[0] / ideal[1], 3),
        "of_model": {
            "synchronous": round(ideal[0] / median(whole), 3),
            "zero_bubble": round(ideal[1] / median(split), 3),
        },
        "met": median(ratios) >= AIMS.get(stages, 1.0) and ideal[1] / median(split) >= OF_MODEL,
    }


if __name__ == "__main__":
    main()
