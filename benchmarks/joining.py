"""What it takes to join while the others train: time to the first useful microbatch, in parts, and what others lose.

    python -m benchmarks.joining [--parameters 8000000] [--max-rate 80Mbit] [--joiners 1,10]

2 stages × 2 peers compute by a calibrated sleep, with the real frames, states and sums of a stage of `--parameters`
parameters; every peer sends at most `--max-rate`. When `--before` steps are decided, the joiners are started. The bound
is start-up + 1.15 × state bytes ÷ rate, with the rate of one donor. Incumbents' rate: median seconds of the steps that
were open while states came, against that of the steps before. One emulated microbatch takes 300 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

from benchmarks.corpus import folder_with_corpus
from benchmarks.emulated import RUN
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results
from peers.options import parse_rate
from swarm.events import (
    Event,
    Gathered,
    MicrobatchAccumulated,
    PassOpened,
    PeerJoined,
    ProcessStarted,
    StateFetched,
    StepApplied,
    StepDecided,
)

FORWARD_S, BACKWARD_S = 0.1, 0.2
INCUMBENTS = 4
Log = list[tuple[float, Event]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=8_000_000, help="of a stage; its state has 12 bytes for each")
    parser.add_argument("--max-rate", default="80Mbit")
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--before", type=int, default=3, help="steps before anybody joins; the first is not counted")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--joiners", default="1")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with folder_with_corpus("joining") as folder:
        for joiners in map(int, options.joiners.split(",")):
            rows.append(_row(folder, options, joiners))
            print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "joining", rows=rows)


def _row(folder: Path, options: argparse.Namespace, joiners: int) -> dict[str, object]:
    path = folder / f"RUN-{joiners}.toml"
    run = RUN.format(steps=options.steps, stages=2, cuts=[1], microbatches=options.microbatches, replicas=8)
    path.write_text(run.replace("replicas = 8", "replicas = 8\nstart_timeout_s = 5"))
    words = [*script("emulated_peer"), str(FORWARD_S), str(BACKWARD_S), str(options.parameters)]
    words += ["--max-rate", options.max_rate]
    with LocalSwarm(folder / f"swarm-{joiners}", path, [words] * INCUMBENTS) as swarm:
        swarm.wait_for(lambda events: _count(events, StepDecided) >= options.before, 600)
        names = [swarm.join(words) for _ in range(joiners)]
        swarm.finish(1800)
        coordinator = swarm.events()
        logs = {name: swarm.events(name) for name in names}
        spawned = dict(zip(names, swarm.spawned_at[INCUMBENTS:], strict=True))
    parts = [_parts(log, coordinator, spawned[name]) for name, log in logs.items()]
    state = max(e.nbytes for log in logs.values() for _, e in log if isinstance(e, Gathered) and _is_state(e))
    usual, during = _step_seconds(coordinator, logs, options.before)
    load: Counter[str] = Counter()
    for log in logs.values():
        for _, event in log:
            if isinstance(event, Gathered) and _is_state(event):
                load.update(event.by_donor)
    rate = parse_rate(options.max_rate)
    medians = {key: round(statistics.median(part[key] for part in parts), 2) for key in parts[0]}
    return {
        "joiners": joiners,
        "state_MB": round(state / 1e6, 1),
        "bytes_over_rate_s": round(state / rate, 2),
        **medians,
        "bound_s": round(medians["start_up_s"] + 1.15 * state / rate, 2),
        "step_s": round(usual, 2),
        "step_while_joining_s": round(during, 2),
        "incumbents_rate": round(usual / during, 3),
        "donor_load_max_over_mean": round(max(load.values()) * len(load) / sum(load.values()), 2),
    }


def _parts(log: Log, coordinator: Log, spawned_at: float) -> dict[str, float]:
    """From the start of the process to the first microbatch in a sum of its own, seconds."""
    actor = next(event.actor for _, event in log if isinstance(event, ProcessStarted))
    placed = next(at for at, event in coordinator if isinstance(event, PeerJoined) and event.actor == actor)
    gathered_at, state = next((at, e) for at, e in log if isinstance(e, Gathered) and _is_state(e))
    loaded = next(at for at, event in log if isinstance(event, StateFetched))
    useful = next(at for at, event in log if isinstance(event, MicrobatchAccumulated))
    caught_up = max((at for at, event in log if isinstance(event, StepApplied) and at < useful), default=loaded)
    return {
        "start_up_s": placed - spawned_at,
        "until_told_s": gathered_at - state.index_s - state.pieces_s - placed,
        "index_s": state.index_s,
        "pieces_s": state.pieces_s,
        "load_s": loaded - gathered_at,
        "catching_up_and_waiting_s": caught_up - loaded,
        "first_microbatch_s": useful - caught_up,
        "total_s": useful - spawned_at,
    }


def _step_seconds(coordinator: Log, logs: dict[str, Log], before: int) -> tuple[float, float]:
    """Medians: of the steps before anybody joined, and of those that were open while a state was on its way."""
    opened = {e.pass_id.rsplit(":", 1)[1]: at for at, e in coordinator if isinstance(e, PassOpened)}
    steps = [(e.step, opened[str(e.step)], at) for at, e in coordinator if isinstance(e, StepDecided)]
    gathered = [(at, e) for log in logs.values() for at, e in log if isinstance(e, Gathered) and _is_state(e)]
    began = min(at - e.index_s - e.pieces_s for at, e in gathered)
    ended = max(at for at, _ in gathered)
    usual = [end - start for step, start, end in steps if 1 <= step < before]
    during = [end - start for step, start, end in steps if start < ended and end > began]
    return statistics.median(usual), statistics.median(during)


def _is_state(event: Gathered) -> bool:
    return event.what.startswith("state")


def _count(events: Log, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for _, event in events)


if __name__ == "__main__":
    main()
