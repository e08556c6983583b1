"""Measures what a SIGKILL costs: detection, the first recovered frame, and the step in which it happens.

    python -m benchmarks.recovery [--runs 5] [--out benchmarks/results/recovery.json]

2 stages × 2 peers train with real compute. One peer kills itself in the third step, when it has finished some of its
microbatches and not others. On shared cores, the ideal duration of that step is (1 + lost work ÷ total work) × the
median of the undisturbed steps; a forward counts as one third of a microbatch's work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from swarm.events import (
    Event,
    FrameRecovered,
    MicrobatchAccumulated,
    MicrobatchForwarded,
    PassOpened,
    PeerFenced,
    StepDecided,
)

RUN = """
[run]
name = "recovery"
steps = 6
[audit]
every = 0
[model]
vocab_size = 4096
dim = 256
layers = 4
heads = 8
kv_heads = 4
ffn_dim = 704
context = 256
cuts = [2]
[batch]
microbatches = 16
sequences = 2
sequence_length = 256
[checkpoint]
every = 1000
[evaluation]
every = 0
"""
MICROBATCHES, STAGES, HIT = 16, 2, 2
OWN = MICROBATCHES // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=at_least(1), default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with folder_with_corpus("recovery") as folder:
        (folder / "RUN.toml").write_text(RUN)
        for _ in range(options.runs):
            rows.append(_kill(folder))
            print(json.dumps(rows[-1]), flush=True)
    summary = {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
    print(json.dumps({"medians": summary}, indent=2))
    write_results(options.out, "recovery", medians=summary, runs=rows)


def _kill(folder: Path) -> dict[str, float]:
    fault = f"kill@MicrobatchAccumulated:{HIT * OWN + OWN // 2}"
    words = [*PEERS, "join", "--threads", "1", "--capacity", "1", "--max-memory", "2GB"]
    with LocalSwarm(
        folder / f"swarm-{time.monotonic_ns()}", folder / "RUN.toml", [[*words, "--fault", fault]] + [words] * 3
    ) as swarm:
        swarm.finish(600)
        events = swarm.events()
        victim = swarm.events("peer-0")
        others = [entry for number in (1, 2, 3) for entry in swarm.events(f"peer-{number}")]
    died = victim[-1][0]
    opened = [at for at, event in events if isinstance(event, PassOpened) and event.pass_kind == "train"]
    decided = [at for at, event in events if isinstance(event, StepDecided)]
    seconds = [b - a for a, b in zip(opened, decided, strict=True)]
    fenced = min(at for at, event in events if isinstance(event, PeerFenced))
    recovered = min(at for at, event in others if isinstance(event, FrameRecovered) and at >= fenced)
    in_pass = [event for _, event in victim if getattr(event, "pass_id", "").endswith(f":{HIT}")]
    lost = (_count(in_pass, MicrobatchForwarded) + 2 * _count(in_pass, MicrobatchAccumulated)) / 3
    normal = statistics.median(seconds[1:HIT] + seconds[HIT + 1 :])
    ideal = normal * (1 + lost / (MICROBATCHES * STAGES))
    return {
        "fenced_ms": round(1000 * (fenced - died), 1),
        "recovered_ms": round(1000 * (recovered - died), 1),
        "lost_microbatches": round(lost, 2),
        "step_s": round(seconds[HIT], 3),
        "normal_step_s": round(normal, 3),
        "step_over_ideal": round(seconds[HIT] / ideal, 3),
    }


def _count(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


if __name__ == "__main__":
    main()
