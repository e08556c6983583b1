"""Measures where the time of a step goes: CPU time of every part of a swarm, and of the whole machine.

    python -m benchmarks.profile [--stages 4] [--replicas 1] [--wire bf16] [--out FILE]

The run is that of benchmarks/throughput.py. Shares are relative to cores × wall time over the steps after the first;
`idle` is what no process of the swarm used.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results
from benchmarks.throughput import TOKENS, run_file
from swarm.events import PassOpened, StepApplied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=at_least(2), default=2, help="the first is not counted")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--wire", default="bf16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with folder_with_corpus("profile") as folder:
        results = _profile(options, folder)
    print(json.dumps(results, indent=2))
    write_results(options.out, "profile", **results)


def _profile(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    path = run_file(folder, options, options.wire, options.stages, options.replicas)
    notes = [folder / f"notes-{number}.jsonl" for number in range(options.stages * options.replicas)]
    words = [*script("profiled_peer")]
    join = ["join", "--threads", "1", "--capacity", "1", "--max-memory", "4GB"]
    with LocalSwarm(folder / "swarm", path, [[*words, str(note), *join] for note in notes]) as swarm:
        swarm.finish(3600)
        opened = [at for at, event in swarm.events() if isinstance(event, PassOpened) and event.pass_kind == "train"]
        logs = [swarm.events(f"peer-{number}") for number in range(len(notes))]
    assert len(opened) == options.steps, "a step was run twice: not a measurement"
    applied = [[at for at, event in log if isinstance(event, StepApplied)] for log in logs]
    wall = max(times[-1] for times in applied) - max(times[0] for times in applied)
    seconds: dict[str, float] = {}
    for note in notes:
        lines = [json.loads(line) for line in note.read_text().splitlines()]
        first, last = lines[-options.steps], lines[-1]
        parts = {part: last["parts"][part] - first["parts"].get(part, 0.0) for part in last["parts"]}
        parts["rest of the peer: event loop, streams, control"] = (
            last["cpu_seconds"] - first["cpu_seconds"] - sum(parts.values())
        )
        parts["libp2p daemon"] = last["daemon_cpu_seconds"] - first["daemon_cpu_seconds"]
        for part, spent in parts.items():
            seconds[part] = seconds.get(part, 0.0) + spent
    whole = wall * (os.cpu_count() or 1)
    seconds["coordinator, idle and others"] = whole - sum(seconds.values())
    tokens = (options.steps - 1) * options.microbatches * TOKENS
    return {
        "tokens_per_second": round(tokens / wall, 1),
        "share": {part: round(spent / whole, 4) for part, spent in seconds.items()},
        "cpu_ms_per_token": {part: round(1000 * spent / tokens, 4) for part, spent in seconds.items()},
    }


if __name__ == "__main__":
    main()
