"""Measures what fault tolerance costs when nothing fails: CPU-seconds per token with it and without it, in pairs.

    python -m benchmarks.fault_tolerance [--pairs 8] [--out benchmarks/results/fault_tolerance.json]

With it: exact sums, every frame kept until its step is decided, digests of the reduced bytes. Without it: fp32 sums,
frames forgotten once sent, no digests (benchmarks/bare_peer.py). Each swarm has 2 stages × 2 peers, real compute, and
32 microbatches of 1,024 tokens. The CPU time is that of peers and their libp2p daemons over the steps after the first.
The two swarms of a pair run at the same time, so that other work on the machine affects both in the same way.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm, script
from benchmarks.results import write_results
from swarm.events import ResourcesMeasured

RUN = """
[run]
name = "fault-tolerance"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = 512
layers = 4
heads = 8
kv_heads = 4
ffn_dim = 1376
context = 256
cuts = [2]
[batch]
microbatches = 32
sequences = 4
sequence_length = 256
[sums]
mode = "{mode}"
[checkpoint]
every = 1000
[evaluation]
every = 0
[timing]
step_budget_s = 600.0
"""
TOKENS_PER_STEP = 32 * 4 * 256
T95 = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201}
"""Student's t, two-sided 95 %, for each number of degrees of freedom."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, choices=range(4, 13))
    parser.add_argument("--steps", type=at_least(2), default=2, help="the first is not counted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pairs = []
    with folder_with_corpus("fault-tolerance") as folder:
        for pair in range(options.pairs):
            order = (True, False) if pair % 2 else (False, True)
            with ExitStack() as stack:
                swarms = {tolerant: stack.enter_context(_swarm(folder, options.steps, tolerant)) for tolerant in order}
                for swarm in swarms.values():
                    swarm.finish(1800)
                (with_s, kept), (without_s, _) = (_cost(swarms[tolerant], options.steps) for tolerant in (True, False))
            pairs.append({"with": with_s, "without": without_s, "ratio": with_s / without_s, "kept": kept})
            print(f"pair {pair}: {1e3 * with_s:.3f} and {1e3 * without_s:.3f} CPU-ms per token", flush=True)
    ratios = [pair["ratio"] for pair in pairs]
    half = T95[len(ratios) - 1] * statistics.stdev(ratios) / math.sqrt(len(ratios))
    summary = {
        "ratio_mean": round(statistics.mean(ratios), 4),
        "ratio_95_percent": [round(statistics.mean(ratios) - half, 4), round(statistics.mean(ratios) + half, 4)],
        "ratio_median": round(statistics.median(ratios), 4),
        "peak_retained_bytes_per_peer": max(pair["kept"] for pair in pairs),
    }
    print(json.dumps(summary, indent=2))
    write_results(options.out, "fault_tolerance", summary=summary, pairs=pairs)


def _swarm(folder: Path, steps: int, tolerant: bool) -> LocalSwarm:
    path = folder / f"RUN-{tolerant}.toml"
    path.write_text(RUN.format(steps=steps, mode="exact" if tolerant else "fp32"))
    words = PEERS if tolerant else [*script("bare_peer")]
    words = [*words, "join", "--threads", "1", "--capacity", "1", "--max-memory", "2GB"]
    return LocalSwarm(folder / f"swarm-{time.monotonic_ns()}", path, [words] * 4)


def _cost(swarm: LocalSwarm, steps: int) -> tuple[float, int]:
    """CPU-seconds per token of all peers together, and the largest number of bytes of frames that one of them kept."""
    seconds, kept = 0.0, 0
    for number in range(4):
        log = swarm.events(f"peer-{number}")
        measured = [event for _, event in log if isinstance(event, ResourcesMeasured)][1:]
        assert len(measured) == steps, "a step was run twice or missed: not a measurement"
        first, last = measured[0], measured[-1]
        seconds += last.cpu_seconds + last.daemon_cpu_seconds - first.cpu_seconds - first.daemon_cpu_seconds
        kept = max(kept, last.peak_retained_bytes)
    return seconds / (TOKENS_PER_STEP * (steps - 1)), kept


if __name__ == "__main__":
    main()
