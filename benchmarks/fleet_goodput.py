"""Simulates how much of its surviving capacity a swarm turns into decided steps while peers leave and others come.

    python -m benchmarks.fleet_goodput [--peers 32] [--departures 0,0.05,0.1,0.16,0.33,trace] [--hours 1]
                                       [--averaging none] [--out benchmarks/results/fleet_goodput.json]

The real cores run in virtual time (benchmarks/fleet). There are three sizes. 32 peers in 4 stages have speeds that
differ by a factor of two, home lines of 200 to 1,000 Mbit/s in ten regions, and 524,288 tokens in 128 microbatches per
step. 100 peers in 4 stages, or 1,000 in 16, have speeds that differ by a factor of ten, lines of 20 to 1,000 Mbit/s,
and 32 microbatches per step and replica; they report their speed and links when they come, and sums are as
`--averaging` says. 10,000 such peers in 64 stages have 8 microbatches per step and replica (half an hour of CPU time
per step). Departures are deaths without notice, at a constant rate per peer and hour; `trace`: 0.58, a third of them in
bursts of up to a fifth of all peers. As many peers come as leave; a newcomer downloads its stage from a replica over
the same lines.

    goodput = (tokens decided ÷ s) ÷ (tokens decided ÷ s without departures × surviving capacity)
    of the optimum = (microbatches decided ÷ s) ÷ (the flow bound of the peers at the start × surviving capacity)

Surviving capacity is the summed speed of the present peers (newcomers from their arrival) ÷ that of the peers at the
start, as a mean over time. So the costs of a departure, of a download and of the wait for it all count as loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.arguments import each
from benchmarks.fleet.machine import FleetMachine, machine
from benchmarks.fleet.optimum import optimum
from benchmarks.fleet.plan import FleetPlan, workload
from benchmarks.fleet.workload import EXACT
from benchmarks.preemptions import DEPARTURES_PER_NODE_HOUR, HOUR_S, IN_BURSTS, Preemptions
from benchmarks.results import write_results
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message

PLAN = FleetPlan(
    peers=32,
    stages=4,
    microbatches_per_replica=16,
    seed=1,
    spread=2.0,
    uplinks=(200e6 / 8, 1000e6 / 8),
    step_budget_s=120.0,
)
UNEQUAL = FleetPlan(peers=100, stages=4, microbatches_per_replica=32, seed=1, step_budget_s=300.0, offers=True)
THOUSAND = replace(UNEQUAL, peers=1_000, stages=16)
TEN_THOUSAND = replace(UNEQUAL, peers=10_000, stages=64, microbatches_per_replica=8)
PLANS = {plan.peers: plan for plan in (PLAN, UNEQUAL, THOUSAND, TEN_THOUSAND)}
TRACE = "trace"
CONTROL_BYTES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=PLAN.peers, choices=PLANS)
    parser.add_argument("--averaging", default=EXACT, help="none, dither:1, int8, int4, int2 or powersgd:RANK")
    parser.add_argument(
        "--departures",
        type=each(_departures, ","),
        default="0,0.05,0.1,0.16,0.33,trace",
        help="per peer and hour; the first is 0",
    )
    parser.add_argument("--hours", type=float, default=1.0, help="virtual, of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seconds = options.hours * HOUR_S
    plan = replace(PLANS[options.peers], workload=workload(options.averaging))
    calm = run(plan_of("0", options.seed, plan), min(seconds, 1200.0))
    rows = []
    for departures in options.departures.split(","):
        found = calm if departures == "0" else run(plan_of(departures, options.seed, plan), seconds)
        rows.append({"departures": departures, **found, "goodput": round(goodput(found, calm), 4)})
        print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "fleet_goodput", rows=rows)


def goodput(found: dict[str, Any], calm: dict[str, Any]) -> float:
    """The goodput as defined above, from the results of `run` with and without departures."""
    return float(found["tokens_per_s"] / calm["tokens_per_s"] / found["capacity"])


def _departures(text: str) -> float:
    """Per peer and hour. Raises ValueError."""
    return DEPARTURES_PER_NODE_HOUR if text == TRACE else float(text)


def plan_of(departures: str, seed: int, plan: FleetPlan = PLAN) -> FleetPlan:
    trace = departures == TRACE
    return replace(
        plan,
        seed=seed,
        departures_per_node_hour=_departures(departures),
        in_bursts=IN_BURSTS if trace else 0.0,
    )


def run(plan: FleetPlan, seconds: float) -> dict[str, Any]:
    """Measure from the opening of the first pass to the last decision; the coordinator's cost, to the end of the
    run.
    """
    start = time.thread_time()
    world = plan.world(seconds, _weigh)
    world.run(seconds, 1 << 62, lambda: world.journal.counts["PassOpened"] > 0)
    opened_at, cpu_s, before = world.now, world.stopwatch.seconds, world.links.traffic.control().messages
    steps, counts, computed = world.journal.steps, world.journal.counts, 0
    while True:
        done = len(steps)
        world.run_steps(done + 1, seconds)
        if len(steps) == done:
            break
        computed = sum(peer.computed for peer in world.all_peers())  # that of an open step counts for none
    if not steps:
        raise ValueError(f"no step is decided in {seconds:.0f} s: more --hours are needed")
    first, last = steps[0].opened_at, steps[-1].decided_at
    trace = plan.trace(seconds)
    ends = [first, *(step.decided_at for step in steps)]
    microbatches = len(steps) * plan.microbatches
    capacity = _capacity(plan, trace, first, last)
    best = optimum([_machine(plan, number) for number in range(plan.peers)], plan.workload, plan.stages)
    reduces = [step.decided_at - step.sealed_at for step in steps]
    return {
        "peers": plan.peers,
        "stages": plan.stages,
        "virtual_s": round(last - first),
        "steps": len(steps),
        "step_s": round(median(step.seconds for step in steps), 1),
        "step_s_at_the_optimum": round(plan.microbatches / best, 1),
        "reduce_s": round(median(reduces), 1),
        "left": sum(len(change.go) for change in trace.changes if change.at_s < last),
        "came": sum(len(change.come) for change in trace.changes if change.at_s < last),
        "given_up": counts["StepAborted"],
        "rolled_back": counts["RolledBack"],
        "fenced": counts["PeerFenced"],
        "stages_moved_to": counts["PeerMoved"],
        "tables_amended": counts["StageAmended"],
        "microbatches_moved": world.journal.moved,
        "computed_per_microbatch_and_stage": round(computed / (microbatches * plan.stages), 3),
        "longest_gap_between_decisions_s": round(max(b - a for a, b in itertools.pairwise(ends)), 1),
        "capacity": round(capacity, 4),
        "tokens_per_s": round(microbatches * plan.workload.tokens / (last - first), 1),
        "of_the_optimum": round(microbatches / (last - first) / (best * capacity), 3),
        "control_messages_per_s": round((world.links.traffic.control().messages - before) / (world.now - opened_at)),
        "coordinator_core_cpu_per_s": round((world.stopwatch.seconds - cpu_s) / (world.now - opened_at), 4),
        "simulator_cpu_s": round(time.thread_time() - start),
    }


def _capacity(plan: FleetPlan, trace: Preemptions, first: float, last: float) -> float:
    """The mean over time of the summed speeds of all present peers ÷ that of the peers at the start."""
    return trace.capacity(first, last, lambda number: _machine(plan, number).speed)


def _machine(plan: FleetPlan, number: int) -> FleetMachine:
    return machine(number, plan.seed, 10, plan.spread, plan.uplinks)


def _weigh(sender: Actor, receiver: Actor, message: Message) -> int:
    return CONTROL_BYTES


if __name__ == "__main__":
    main()
