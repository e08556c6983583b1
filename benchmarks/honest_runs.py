"""Measures whether honest peers are expelled: real runs with frequent audits in which nobody lies.

    python -m benchmarks.honest_runs [--runs 30] [--mixed 10] [--steps 16] [--every 4] [--out FILE]

Two stages of three replicas each. Peers are unlike in speed: each one's pace is drawn. In the last `--mixed` runs, half
of each run's peers compute with the plain instruction set and the others with the best one of this machine, so their
results differ in the last bits; these runs have the default tolerance. The other runs allow no difference. Every run
has another seed. `expelled`, `drifted`: the figures that should be 0.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.audited_run import STAGES, outcome, write_run
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from swarm.events import PeerDelays, PeerFenced, StateDrifted

REPLICAS, MICROBATCHES = 3, 12
PLAIN = {"ATEN_CPU_CAPABILITY": "default"}
"""The environment in which torch computes without vector instructions."""
PACE = (0.02, 0.04)
"""Seconds of a microbatch's forward and backward, at least, for the fastest peer."""
SLOWER = (1, 1, 1, 2, 3)
"""How many times slower a peer may be; one is drawn."""
TOLERANCE = 0.01
"""The default of `audit.tolerance`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=at_least(1), default=30)
    parser.add_argument("--mixed", type=int, default=10, help="number of runs on two instruction sets")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--every", type=int, default=4, help="steps from drawn audit to drawn audit, about")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    with folder_with_corpus("honest-runs") as folder:
        for number in range(options.runs):
            mixed = number >= options.runs - options.mixed
            row = rows[f"{number}"] = _run(folder / f"run-{number}", options, number, mixed)
            print(number, json.dumps(row), flush=True)
    for mixed in (False, True):
        those = [row for row in rows.values() if row["mixed"] is mixed]
        sums = {
            key: sum(int(row[key] or 0) for row in those)
            for key in ("audited", "expelled", "drifted", "removed", "delayed")
        }
        print("mixed" if mixed else "alike", len(those), "runs:", json.dumps(sums), flush=True)
    write_results(options.out, "honest_runs", rows=rows)


def _run(folder: Path, options: argparse.Namespace, seed: int, mixed: bool) -> dict[str, float | None]:
    drawn = random.Random(seed)
    path = write_run(
        folder,
        "honest-runs",
        steps=options.steps,
        microbatches=MICROBATCHES,
        replicas=REPLICAS,
        every=options.every,
        evaluate=options.steps,
        evaluated=8,
    )
    overrides = [f"run.seed={seed}", *([f"audit.tolerance={TOLERANCE}"] if mixed else [])]
    with LocalSwarm(folder / "swarm", path, (), overrides=overrides) as swarm:
        for number in range(STAGES * REPLICAS):
            slower = drawn.choice(SLOWER)
            pace = ",".join(f"{seconds * slower:g}" for seconds in PACE)
            words = [*PEERS, "join", "--threads", "1", "--max-memory", "1GB", f"--pace={pace}"]
            swarm.join(words, PLAIN if mixed and number % 2 else None)
        swarm.finish(600)
        events = swarm.events()
    row, expelled = outcome(events)
    return {
        **row,
        "mixed": mixed,
        "expelled": len(expelled),
        "drifted": sum(isinstance(event, StateDrifted) for _, event in events),
        "removed": sum(isinstance(event, PeerFenced) for _, event in events),
        "delayed": sum(isinstance(event, PeerDelays) for _, event in events),
    }


if __name__ == "__main__":
    main()
