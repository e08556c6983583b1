"""How much of its surviving capacity a swarm turns into decided steps while peers leave and others come, simulated.

    python -m benchmarks.fleet_goodput [--departures 0,0.05,0.1,0.16,0.33,trace] [--hours 1]
        [--out benchmarks/results/fleet_goodput.json]

The real cores in virtual time (swarm/simulation/fleet): 32 peers in 4 stages, speeds that differ twice, home lines of
200 to 1,000 Mbit/s in ten regions, 524,288 tokens in 128 microbatches a step. Departures are deaths without a word, at
a constant rate per peer and hour; `trace`: 0.58, a third of them in bursts of up to a fifth of all. As many come
as go; a newcomer downloads its stage from a replica over the same lines.

    goodput = (tokens decided ÷ s) ÷ (tokens decided ÷ s without departures × surviving capacity)

Surviving capacity is the sum of the speeds of those who are there, newcomers from when they arrive, over that of the
peers at the start, as a mean over time. So what a departure, a download and the wait for it cost all count as loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from benchmarks.results import write_results
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message
from swarm.simulation.fleet.machine import machine
from swarm.simulation.fleet.plan import FleetPlan
from swarm.simulation.preemptions import DEPARTURES_PER_NODE_HOUR, HOUR_S, IN_BURSTS, Preemptions

PLAN = FleetPlan(
    peers=32,
    stages=4,
    microbatches_per_replica=16,
    seed=1,
    spread=2.0,
    uplinks=(200e6 / 8, 1000e6 / 8),
    step_budget_s=120.0,
    slots=16,
)
TRACE = "trace"
CONTROL_BYTES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--departures", default="0,0.05,0.1,0.16,0.33,trace", help="per peer and hour; the first is 0")
    parser.add_argument("--hours", type=float, default=1.0, help="virtual, of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seconds = options.hours * HOUR_S
    calm = run(plan_of("0", options.seed), min(seconds, 1200.0))
    rows = []
    for departures in options.departures.split(","):
        found = calm if departures == "0" else run(plan_of(departures, options.seed), seconds)
        rows.append({"departures": departures, **found, "goodput": round(goodput(found, calm), 4)})
        print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, "fleet_goodput", rows=rows)


def goodput(found: dict[str, Any], calm: dict[str, Any]) -> float:
    """As above, of what `run` found with departures and without."""
    return float(found["tokens_per_s"] / calm["tokens_per_s"] / found["capacity"])


def plan_of(departures: str, seed: int) -> FleetPlan:
    trace = departures == TRACE
    return FleetPlan(
        peers=PLAN.peers,
        stages=PLAN.stages,
        microbatches_per_replica=PLAN.microbatches_per_replica,
        seed=seed,
        spread=PLAN.spread,
        uplinks=PLAN.uplinks,
        departures_per_node_hour=DEPARTURES_PER_NODE_HOUR if trace else float(departures),
        in_bursts=IN_BURSTS if trace else 0.0,
        step_budget_s=PLAN.step_budget_s,
        slots=PLAN.slots,
    )


def run(plan: FleetPlan, seconds: float) -> dict[str, Any]:
    """Measured from the opening of the first pass to the last decision."""
    world = plan.world(seconds, _weigh)
    world.run(seconds, 1 << 62, lambda: False)
    steps = world.journal.steps
    first, last = steps[0].opened_at, steps[-1].decided_at
    trace = plan.trace(seconds)
    longest = max(b.decided_at - a.decided_at for a, b in itertools.pairwise(steps))
    computed = sum(peer.computed for peer in world.all_peers())
    return {
        "virtual_s": round(last - first),
        "steps": len(steps),
        "left": sum(len(change.go) for change in trace.changes if change.at_s < last),
        "came": sum(len(change.come) for change in trace.changes if change.at_s < last),
        "given_up": world.journal.counts["StepAborted"],
        "rolled_back": world.journal.counts["RolledBack"],
        "computed_per_microbatch_and_stage": round(computed / (len(steps) * plan.microbatches * plan.stages), 3),
        "longest_gap_between_decisions_s": round(longest, 1),
        "capacity": round(_capacity(plan, trace, first, last), 4),
        "tokens_per_s": round(len(steps) * plan.microbatches * plan.workload.tokens / (last - first), 1),
    }


def _capacity(plan: FleetPlan, trace: Preemptions, first: float, last: float) -> float:
    """Mean over time of the speeds of all that are there ÷ that of those at the start."""
    return trace.capacity(first, last, lambda number: machine(number, plan.seed, 10, plan.spread, plan.uplinks).speed)


def _weigh(sender: Actor, receiver: Actor, message: Message) -> int:
    return CONTROL_BYTES


if __name__ == "__main__":
    main()
