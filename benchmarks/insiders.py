"""Measures what one peer inside the run can do, for each kind of misbehaviour: held-out loss and time, with audits.

    python -m benchmarks.insiders [--kinds negated,mute] [--steps 48] [--every 8] [--out FILE]

The peers are real processes in two stages of three replicas. One of the six peers is honest at first, so that no audit
of newcomers finds it, and misbehaves from step `--since` on. Peers compute at a pace, so most of their time is sleep.
`penalty` is the held-out loss at the end ÷ that of the row without an insider, minus 1. `seconds_lost` is the time from
the first step to the last minus that of the row without an insider. `failures_s` is the time by which steps with a
failure took longer than usual ones of the same run, from step `--since` on (the sum of FaultCosted): the load of the
machine hardly changes it. `kept_on` is the number of steps that the insider
could disturb before it was expelled; null: it never was. `compared`: number of newcomers that have shown their state
before they got work; `compared_false`: how many of these states were found to be false; `drifted`: how often a step was
repeated because states differed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.arguments import some_of
from benchmarks.audited_run import STAGES, outcome, write_run
from benchmarks.corpus import folder_with_corpus
from benchmarks.insider_peer import KINDS
from benchmarks.local_swarm import PEERS, LocalSwarm, script
from benchmarks.results import write_results
from swarm.events import Event, FaultCosted, PeerFenced, StateCompared, StateDrifted, StepDecided

REPLICAS, MICROBATCHES = 3, 12
INSIDER = 3
"""The insider's number in the order of arrival."""
NEWCOMERS = {"gift": 2}
"""For each kind, the number of peers that come while the others train."""
FAULTS = {"constant": "lie", "mute": "swallow", "mute in evaluations": "mute", "false claim of nan": "nan"}
"""Kinds that `--fault` implements, with their names there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = (*KINDS, *FAULTS)
    parser.add_argument("--kinds", type=some_of(kinds, ","), default=",".join(kinds))
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--since", type=int, default=12)
    parser.add_argument("--every", type=int, default=8, help="steps from drawn audit to drawn audit, about")
    parser.add_argument("--pace", default="0.02,0.04", help="seconds of a microbatch's forward and backward, at least")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.since >= options.steps:
        parser.error(f"--since {options.since}: the run has only {options.steps} steps, so nobody would misbehave")
    with folder_with_corpus("insiders") as folder:
        honest = _run(folder / "nobody", options, None)
        rows = {"nobody": honest}
        print("nobody", json.dumps(honest), flush=True)
        for number, kind in enumerate(options.kinds.split(",")):
            row = rows[kind] = _run(folder / f"insider-{number}", options, kind)
            if row["loss"] is not None:
                row["penalty"] = round(row["loss"] / honest["loss"] - 1, 5)  # type: ignore[operator]
            row["seconds_lost"] = round(row["seconds"] - honest["seconds"], 1)  # type: ignore[operator]
            print(kind, json.dumps(row), flush=True)
    write_results(options.out, "insiders", rows=rows)


def _run(folder: Path, options: argparse.Namespace, kind: str | None) -> dict[str, float | None]:
    evaluate = options.every if kind == "mute in evaluations" else options.steps
    path = write_run(
        folder,
        "insiders",
        steps=options.steps,
        microbatches=MICROBATCHES,
        replicas=REPLICAS,
        every=options.every,
        evaluate=evaluate,
        evaluated=8,
        most=REPLICAS + 1 if kind in NEWCOMERS else None,
    )
    arguments = ["join", "--threads", "1", "--max-memory", "1GB", f"--pace={options.pace}"]
    commands = [[*PEERS, *arguments] for _ in range(STAGES * REPLICAS)]
    if kind in FAULTS:
        commands[INSIDER].append(f"--fault={FAULTS[kind]}@StepApplied,step={options.since - 1}")
    elif kind is not None:
        commands[INSIDER] = [*script("insider_peer"), kind, str(options.since), *arguments]
    with LocalSwarm(folder / "swarm", path, commands) as swarm:
        if kind in NEWCOMERS:
            _await_step(swarm, options.since + 2)
        for _ in range(NEWCOMERS.get(kind or "", 0)):
            swarm.join([*PEERS, *arguments])
        swarm.finish(600, failing=[INSIDER])
        events = swarm.events()
    row, expelled = outcome(events)
    assert len(expelled) <= 1, "an honest peer is expelled"
    return {
        **row,
        "failures_s": round(sum(_lost_s(event, options.since) for _, event in events), 1),
        "removed_from_passes": sum(isinstance(event, PeerFenced) for _, event in events),
        "compared": sum(isinstance(event, StateCompared) for _, event in events),
        "compared_false": sum(isinstance(event, StateCompared) and not event.equal for _, event in events),
        "drifted": sum(isinstance(event, StateDrifted) for _, event in events),
        "kept_on": expelled[0] - options.since if expelled else None,
    }


def _lost_s(event: Event, since: int) -> float:
    return event.seconds if isinstance(event, FaultCosted) and event.step >= since else 0.0


def _await_step(swarm: LocalSwarm, step: int) -> None:
    """Wait until that step is decided. Raises TimeoutError."""
    deadline = time.monotonic() + 300
    while not any(isinstance(event, StepDecided) and event.step >= step for _, event in swarm.events()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"step {step} is not decided after 300 s")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
