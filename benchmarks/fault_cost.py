"""Compares the cost of a kill that the dashboard shows with runs without a kill, and its prediction with what happened.

    python -m benchmarks.fault_cost [--pairs 3] [--out benchmarks/results/fault_cost.json]

The runs have the demo's shape, 4 stages × 2 peers, with emulated compute (60 + 120 ms per microbatch), so that a
neighbour's core does not do the work of a missing peer. One peer of stage 1 kills itself in the middle of a step. In
turn with this, the same run takes place without a kill. `told_s` is the cost in the log (`FaultCosted`). `real_s` is
the time of the step with the kill minus the median of the same step in the runs without a kill. `foretold` is the
answer of the fold to "what if it left now", from the coordinator's log up to the last line before the kill.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from peers.fold import RunState, apply
from peers.fold.views import what_if
from swarm.events import Event, FaultCosted, PassOpened, PeerFenced, StepDecided

RUN = """
[run]
name = "cost"
steps = 20
[audit]
every = 0
[model]
vocab_size = 4096
dim = 64
layers = 4
heads = 2
kv_heads = 1
ffn_dim = 128
context = 64
cuts = [1, 2, 3]
[batch]
microbatches = 32
sequences = 1
sequence_length = 64
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = 2
"""
STAGES, REPLICAS, MICROBATCHES, HIT = 4, 2, 32, 12
VICTIM = 2
"""The third peer. It is the first peer of stage 1, because peers are placed in the order of their arrival."""
OWN = MICROBATCHES // REPLICAS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    killed, whole = [], []
    with folder_with_corpus("cost") as folder:
        (folder / "RUN.toml").write_text(RUN)
        for number in range(options.pairs):
            killed.append(_run(folder, f"killed-{number}", kill=True))
            whole.append(_run(folder, f"whole-{number}", kill=False))
            print(json.dumps([killed[-1], whole[-1]]), flush=True)
    usual = statistics.median(row["hit_step_s"] for row in whole)
    for row in killed:
        row["real_s"] = round(row["hit_step_s"] - usual, 3)
    ratios = {
        "told_to_real": statistics.median(row["told_s"] / row["real_s"] for row in killed),
        "foretold_to_real_delay": statistics.median(row["foretold_delay_s"] / row["real_s"] for row in killed),
        "foretold_to_told_microbatches": statistics.median(
            row["foretold_microbatches"] / row["told_microbatches"] for row in killed
        ),
        "foretold_to_real_rate": statistics.median(row["foretold_rate"] / row["rate_after"] for row in killed),
    }
    found = {key: round(value, 3) for key, value in ratios.items()}
    print(json.dumps(found, indent=2))
    write_results(options.out, "fault_cost", killed=killed, whole=whole, **found)


def _run(folder: Path, name: str, *, kill: bool) -> dict[str, float]:
    words = [*PEERS, "join", "--threads=1", "--pace=0.06,0.12", "--max-memory=500MB"]
    peers = [list(words) for _ in range(STAGES * REPLICAS)]
    if kill:
        peers[VICTIM] += ["--fault", f"kill@MicrobatchAccumulated:{HIT * OWN + OWN // 2}"]
    with LocalSwarm(folder / name, folder / "RUN.toml", peers) as swarm:
        swarm.finish(600)
        events = swarm.events()
        died = swarm.events(f"peer-{VICTIM}")[-1][0] if kill else 0.0
    opened = {_step(event): at for at, event in events if isinstance(event, PassOpened) and event.pass_kind == "train"}
    decided = {event.step: at for at, event in events if isinstance(event, StepDecided)}
    seconds = {step: at - opened[step] for step, at in decided.items()}
    if not kill:
        return {"hit_step_s": round(statistics.median(seconds[step] for step in range(4, 20)), 3)}
    hit = next(event for _, event in events if isinstance(event, FaultCosted))
    foretold = _foretold(events, died)
    after = statistics.median(seconds[step] for step in range(hit.step + 2, 20))
    return {
        "hit_step": hit.step,
        "hit_step_s": round(seconds[hit.step], 3),
        "told_s": round(hit.seconds, 3),
        "told_microbatches": hit.microbatches,
        "rate_after": round(MICROBATCHES * 64 / after, 1),
        "foretold_rate": round(foretold["after"], 1),
        "foretold_seconds_again": round(foretold["seconds_again"], 3),
        "foretold_delay_s": round(foretold["step_later_s"] or 0.0, 3),
        "foretold_microbatches": foretold["microbatches_again"],
    }


def _foretold(events: list[tuple[float, Event]], died: float) -> dict[str, Any]:
    """What the fold of the coordinator's log up to that instant predicts for the peer that is fenced next."""
    victim = next(event.actor for at, event in events if isinstance(event, PeerFenced) and at > died)
    state = RunState()
    for at, event in events:
        if at <= died:
            apply(state, event, at, "coordinator")
    answer = what_if(state, victim, died)
    assert answer is not None, "the victim was in the swarm"
    return answer


def _step(event: PassOpened) -> int:
    return int(event.pass_id.split(":")[1])


if __name__ == "__main__":
    main()
