"""Tokens per second of a swarm on this machine against one process, side by side in one run, as ratios.

    python -m benchmarks.throughput [--pairs 5] [--wires bf16,none] [--out benchmarks/results/throughput.json]

Rows: `reference` with 2 threads, two processes of one thread each, and for each wire a swarm of 4 stages × 1 and one of
2 × 2. Each pair runs all of them one after another, in turned order. A run is timed from the opening of its second step
until the last peer has applied the last one: the first warms up. With `--steps 1` it is timed from the opening of that
step, so that long steps take half the time, and what warms up counts: in all rows. The ratio is that of a swarm to the
faster of the first two rows, by its median, in the same pair. Were it the faster one of each pair, noise alone would
make it faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.local_swarm import PEERS, LocalSwarm, script
from benchmarks.results import write_results
from swarm.events import PassOpened, StepApplied

RUN = """
[run]
name = "throughput"
steps = {steps}
[model]
vocab_size = 4096
dim = {dim}
layers = 8
heads = 8
kv_heads = 4
ffn_dim = {ffn}
context = 256
cuts = {cuts}
[batch]
microbatches = {microbatches}
sequences = 4
sequence_length = 256
[codec]
forward = "{wire}"
backward = "{wire}"
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = {replicas}
[timing]
step_budget_s = 600.0
"""
TOKENS = 4 * 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="the first is not counted, if there are more")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--wires", default="bf16,none")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        results = measure(options, Path(folder))
    print(json.dumps(results["summary"], indent=2))
    write_results(options.out, "throughput", **results)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    subprocess.run([*PEERS, "prepare", "--out", str(folder / "data")], check=True, stdout=subprocess.DEVNULL)
    wires = options.wires.split(",")
    rows: dict[str, Callable[[], float]] = {
        "reference, 2 threads": lambda: _reference(folder, options, 1, 2),
        "2 processes × 1 thread": lambda: _reference(folder, options, 2, 1),
    }
    single = list(rows)
    for wire in wires:
        rows[f"4 stages × 1, {wire}"] = lambda wire=wire: _swarm(folder, options, wire, 4, 1)
        rows[f"2 stages × 2, {wire}"] = lambda wire=wire: _swarm(folder, options, wire, 2, 2)
    names = list(rows)
    pairs: list[dict[str, float]] = []
    for pair in range(options.pairs):
        turned = names[pair % len(names) :] + names[: pair % len(names)]
        pairs.append({name: rows[name]() for name in turned})
        print(f"pair {pair}: {', '.join(f'{name}: {pairs[-1][name]:,.0f}' for name in names)}", flush=True)
    faster = max(single, key=lambda name: statistics.median(pair[name] for pair in pairs))
    summary = {}
    for name in names[len(single) :]:
        ratios = [pair[name] / pair[faster] for pair in pairs]
        summary[name] = {
            "median": round(statistics.median(ratios), 3),
            "min": round(min(ratios), 3),
            "max": round(max(ratios), 3),
            "pairs": len(ratios),
        }
    return {"tokens_per_second": pairs, "faster": faster, "summary": summary}


def run_file(folder: Path, options: argparse.Namespace, wire: str, stages: int, replicas: int) -> Path:
    cuts = [8 * s // stages for s in range(1, stages)]
    path = folder / f"RUN-{wire}-{stages}x{replicas}.toml"
    path.write_text(
        RUN.format(
            steps=options.steps,
            dim=options.dim,
            ffn=options.dim * 8 // 3 // 32 * 32,
            cuts=cuts,
            microbatches=options.microbatches,
            wire=wire,
            replicas=replicas,
        )
    )
    return path


def _reference(folder: Path, options: argparse.Namespace, processes: int, threads: int) -> float:
    """Tokens per second of all processes together, which share the microbatches of a step, without a codec."""
    share = argparse.Namespace(**vars(options) | {"microbatches": options.microbatches // processes})
    path = run_file(folder, share, "none", 4, 1)
    words = [*script("reference_worker"), str(path), str(threads)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(processes)]
    rate = 0.0
    for process in running:
        out, _ = process.communicate(timeout=3600)
        rate += _counted(options) * share.microbatches * TOKENS / json.loads(out)
    return rate


def _swarm(folder: Path, options: argparse.Namespace, wire: str, stages: int, replicas: int) -> float:
    path = run_file(folder, options, wire, stages, replicas)
    words = [*PEERS, "join", "--threads", "1", "--capacity", "1", "--max-memory", "4GB"]
    home = folder / f"swarm-{time.monotonic_ns()}"
    with LocalSwarm(home, path, [words] * (stages * replicas)) as swarm:
        swarm.finish(3600)
        opened = [at for at, event in swarm.events() if isinstance(event, PassOpened)]
        logs = [swarm.events(f"peer-{number}") for number in range(stages * replicas)]
    applied = [at for log in logs for at, event in log if isinstance(event, StepApplied)]
    assert len(opened) == options.steps, "a step was run twice: not a measurement"
    counted = _counted(options)
    return counted * options.microbatches * TOKENS / (max(applied) - opened[-counted])


def _counted(options: argparse.Namespace) -> int:
    """Steps that are timed: the last ones."""
    return max(1, options.steps - 1)


if __name__ == "__main__":
    main()
