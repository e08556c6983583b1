"""`swarm-peer simulate`: runs the protocol with seeded faults, in virtual time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from peers.options import Json


def command(
    seeds: Annotated[
        int | None, typer.Option("--seeds", "-n", min=1, help="Number of seeds to run. Default: 1000.")
    ] = None,
    first: Annotated[int | None, typer.Option("--first", min=0, help="The first seed. Default: 0.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Run this one seed.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print everything that happens.")] = False,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            help="mixed, calm, storm, imported, delta, averaging, auto, tied, group, election, joining, moves, "
            "audited, seats, controls, unlike, insiders, passes, meddling, alone, diverging, or a kind of fault. "
            "The error for a wrong name lists all.",
        ),
    ] = "mixed",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of processes to use.")] = 1,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Folder for the coordinators' event logs: SEED/ACTOR/events.jsonl, virtual time."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the protocol under seeded crashes, stalls, losses and partitions and check every invariant at every event.

    Exits with 1 if an invariant is broken, after printing the seed and the command that replays it.
    """
    from swarm.simulation.runs.scenario import SCENARIOS

    if log is not None and log.exists() and any(log.iterdir()):
        raise typer.BadParameter(f"{log} is not empty: name a new folder", param_hint="--log")
    if scenario not in SCENARIOS:
        raise typer.BadParameter(f"{scenario!r}: choose one of {', '.join(SCENARIOS)}", param_hint="--scenario")
    if seed is not None:
        if seeds is not None or first is not None:
            raise typer.BadParameter("runs one seed: leave out --seeds and --first", param_hint="--seed")
        raise typer.Exit(_one(scenario, seed, trace, as_json, log))
    if trace:
        raise typer.BadParameter("shows one run: name it with --seed", param_hint="--trace")
    first = first or 0
    raise typer.Exit(_many(scenario, range(first, first + (seeds or 1000)), jobs, as_json, log))


def _one(scenario: str, seed: int, trace: bool, as_json: bool, log: Path | None) -> int:
    from swarm.simulation.runs.runner import TRACE_TAIL, run_seed

    outcome = run_seed(scenario, seed, tracing=True, log=log)
    if as_json:
        shown = {
            "seed": seed,
            "scenario": scenario,
            "invariant": outcome.invariant,
            "detail": outcome.detail,
            "events": outcome.events,
            "virtual_seconds": outcome.virtual_s,
            "faults": [str(cell) for cell in outcome.struck],
            "trace": outcome.trace if trace else [],
        }
        print(json.dumps(shown))
        return 0 if outcome.ok else 1
    if trace or not outcome.ok:
        print("\n".join(outcome.trace if trace else outcome.trace[-TRACE_TAIL:]))
    faults = ", ".join(str(cell) for cell in outcome.struck) or "none"
    print(f"seed {seed}: {outcome.events} events, {outcome.virtual_s:.2f} virtual seconds; faults: {faults}")
    print("all invariants held" if outcome.ok else f"BROKEN {outcome.invariant}: {outcome.detail}")
    return 0 if outcome.ok else 1


def _many(scenario: str, seeds: range, jobs: int, as_json: bool, log: Path | None) -> int:
    from swarm.simulation.runs.coverage import ENOUGH_SEEDS, Coverage
    from swarm.simulation.runs.runner import run_seeds

    coverage, failures, events, rollbacks, done = Coverage(), [], 0, 0, 0
    start = shown = time.perf_counter()
    for outcome in run_seeds(scenario, seeds, jobs, log):
        done += 1
        events += outcome.events
        rollbacks += outcome.rollbacks
        coverage.add(outcome.struck)
        if not outcome.ok:
            failures.append(outcome)
            replay = f"swarm-peer simulate --scenario {scenario} --seed {outcome.seed} --trace"
            print(f"BROKEN {outcome.invariant}: {outcome.detail}\n  replay: {replay}", file=sys.stderr, flush=True)
        if sys.stderr.isatty() and time.perf_counter() - shown > 0.5:
            shown = time.perf_counter()
            print(f"\r{done} of {len(seeds)} seeds, {len(failures)} broken", end="", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    kinds = {cell.kind for cell in coverage.counts}
    empty = coverage.empty() if scenario == "mixed" else coverage.empty(kinds)
    if as_json:
        report = {
            "scenario": scenario,
            "seeds": done,
            "seconds": seconds,
            "seeds_per_second": done / seconds,
            "events": events,
            "faults": coverage.counts.total(),
            "rollbacks": rollbacks,
            "failures": [{"seed": o.seed, "invariant": o.invariant, "detail": o.detail} for o in failures],
            "coverage": {str(cell): count for cell, count in sorted(coverage.counts.items())},
            "empty": [str(cell) for cell in empty],
        }
        print(json.dumps(report))
    else:
        if coverage.counts:
            print(coverage.table())
            print(coverage.reasons())
            if done >= ENOUGH_SEEDS or not empty:
                print(f"empty cells: {', '.join(map(str, empty)) or 'none'}")
            else:
                print(
                    f"empty cells: {len(empty)}; at least {ENOUGH_SEEDS} seeds are needed to strike all "
                    "(--json names the empty ones)"
                )
        print(
            f"{done} seeds in {seconds:.1f} s ({done / seconds:.0f} seeds/s), {events} events, "
            f"{coverage.counts.total()} faults, {rollbacks} rollbacks, {len(failures)} broken"
        )
    return 1 if failures else 0
