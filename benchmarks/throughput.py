"""Compares the tokens per second of a swarm on this machine with those of one process, side by side in one run, as
ratios.

    python -m benchmarks.throughput [--pairs 5] [--wires bf16,none] [--out benchmarks/results/throughput.json]

For each wire format there are a swarm of 4 stages × 1, a swarm of 2 × 2, `reference` with 2 threads, and two processes
of `reference` with one thread each, which share the microbatches of a step without exchanging anything. The same two
exist with a plain training loop in torch instead of `reference` (benchmarks/reference_worker.py). They use the whole
machine in turn, ten seconds each, because the speed of the machine varies by a tenth from minute to minute. A pair is a
step of a swarm, in seconds that this swarm had, and what the others did in their seconds meanwhile. The first step is
not counted, because a peer allocates its memory for all microbatches in it. `reference` and `plain` are the ratios of a
swarm to the faster of the two references and of the two plain loops, by their medians over the pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm, script
from benchmarks.results import write_results
from benchmarks.taking_turns import Program, take_turns
from swarm.events import PassOpened

RUN = """
[run]
name = "throughput"
steps = {steps}
[audit]
every = 0
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
SHAPES = ((4, 1), (2, 2))
"""(stages, replicas) of the swarms."""
ALONE = {
    f"{kind}, {told}": (kind, processes, threads)
    for kind in ("reference", "plain")
    for told, processes, threads in (("2 threads", 1, 2), ("2 processes × 1 thread", 2, 1))
}
"""(kind, processes, threads) of what trains without a swarm, by name."""
START_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=at_least(1), default=5)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--wires", default="bf16,none")
    parser.add_argument("--turn", type=float, default=10.0, help="seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.steps = 2 * options.pairs + 4  # the faster swarm is not to end before the slower one is measured
    rows: dict[str, list[dict[str, float]]] = {}
    summaries: dict[str, object] = {}
    with folder_with_corpus("throughput") as folder:
        for wire in options.wires.split(","):
            measured = measure(folder, options, wire)
            rows |= measured
            summaries |= {row: summary(pairs) for row, pairs in measured.items()}
            print(json.dumps({row: summaries[row] for row in measured}, indent=2), flush=True)
            write_results(options.out, "throughput", tokens_per_second=rows, summary=summaries)


def measure(folder: Path, options: argparse.Namespace, wire: str) -> dict[str, list[dict[str, float]]]:
    """For each swarm and each pair, the tokens per second of the swarm and of each of `ALONE`."""
    with ExitStack() as stack:
        swarms = [_Swarm.start(stack, folder, options, wire, *shape) for shape in SHAPES]
        others = [_Alone.start(stack, folder, options, name) for name in ALONE]
        programs = [*(each.program for each in swarms), *(each.program for each in others)]
        take_turns(programs, lambda: all(len(s.opened()) >= options.pairs + 2 for s in swarms), options.turn)
        return {s.program.name: s.pairs(others, options) for s in swarms}


def summary(pairs: list[dict[str, float]]) -> dict[str, object]:
    found: dict[str, object] = {"pairs": len(pairs)}
    for kind in dict.fromkeys(kind for kind, _, _ in ALONE.values()):
        names = [name for name, meant in ALONE.items() if meant[0] == kind]
        faster = max(names, key=lambda name: statistics.median(pair[name] for pair in pairs))
        ratios = [pair["swarm"] / pair[faster] for pair in pairs]
        range_of = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        found[kind] = {name: round(ratio, 3) for name, ratio in range_of.items()} | {"faster": faster}
    return found


@dataclass(frozen=True)
class _Swarm:
    program: Program
    swarm: LocalSwarm

    @classmethod
    def start(
        cls, stack: ExitStack, folder: Path, options: argparse.Namespace, wire: str, stages: int, replicas: int
    ) -> _Swarm:
        """Start it. It is stopped when its first step has opened."""
        path = run_file(folder, options, wire, stages, replicas)
        words = [*PEERS, "join", "--threads", "1", "--capacity", "1", "--max-memory", "4GB"]
        swarm = stack.enter_context(LocalSwarm(path.with_suffix(""), path, [words] * (stages * replicas)))
        assert swarm.coordinator is not None
        name = f"{stages} stages × {replicas}, {wire}"
        found = cls(Program(name, [process.pid for process in (swarm.coordinator, *swarm.peers)]), swarm)
        stack.callback(found.program.go_on)  # a daemon that is stopped does not notice that its peer is killed
        _wait(lambda: bool(found.opened()), name)
        found.program.stop()
        return found

    def opened(self) -> list[float]:
        """The time, in unix seconds, at which its steps began."""
        return [at for at, event in self.swarm.events() if isinstance(event, PassOpened) and event.pass_kind == "train"]

    def pairs(self, others: list[_Alone], options: argparse.Namespace) -> list[dict[str, float]]:
        passes = [
            event.pass_id
            for _, event in self.swarm.events()
            if isinstance(event, PassOpened) and event.pass_kind == "train"
        ]
        assert passes == [f"1:{step}" for step in range(len(passes))], "a step was run twice: not a measurement"
        opened = self.opened()[1 : options.pairs + 2]
        tokens = options.microbatches * TOKENS
        return [
            {"swarm": tokens / (self.program.own(end) - self.program.own(begin))}
            | {other.program.name: other.rate(begin, end) for other in others}
            for begin, end in itertools.pairwise(opened)
        ]


@dataclass(frozen=True)
class _Alone:
    program: Program
    notes: list[Path]

    @classmethod
    def start(cls, stack: ExitStack, folder: Path, options: argparse.Namespace, name: str) -> _Alone:
        """Start the processes. Each is stopped at its first microbatch. They share the microbatches of a step."""
        kind, processes, threads = ALONE[name]
        of_one = argparse.Namespace(dim=options.dim, steps=10_000, microbatches=options.microbatches // processes)
        path = run_file(folder, of_one, "none", 4, 1, f"RUN-{kind}-{processes}-processes.toml")
        notes = [Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(processes)]
        running = []
        for note in notes:
            words = [*script("reference_worker"), str(path), str(threads), str(note), kind]
            running.append(stack.enter_context(subprocess.Popen(words)))
            stack.callback(running[-1].kill)
        found = cls(Program(name, [process.pid for process in running]), notes)
        _wait(lambda: all(note.stat().st_size for note in notes), name)
        found.program.stop()
        return found

    def rate(self, begin: float, end: float) -> float:
        """Tokens per second of its own time between two moments, in unix seconds."""
        mine = [self.program.own(at) for at in (begin, end)]
        done = 0.0
        for note in self.notes:
            times = [self.program.own(float(line)) for line in note.read_text().split()]
            first, last = np.interp(mine, times, range(len(times)))
            done += float(last - first)
        return done * TOKENS / (mine[1] - mine[0])


def _wait(reached: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + START_S
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}: not at work after {START_S:g} s")
        time.sleep(0.2)


def run_file(folder: Path, options: argparse.Namespace, wire: str, stages: int, replicas: int, name: str = "") -> Path:
    cuts = [8 * s // stages for s in range(1, stages)]
    path = folder / (name or f"RUN-{wire}-{stages}x{replicas}.toml")
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


if __name__ == "__main__":
    main()
