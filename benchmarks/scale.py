"""Measures what the coordinator costs with 100, 1,000 and 10,000 unequal peers: the real cores in virtual time.

    python -m benchmarks.scale [--peers 100,1000,10000] [--seconds 60] [--averaging none] [--offers]
                               [--out benchmarks/results/scale.json]

CoordinatorCore and PeerCore of swarm/protocol run in the fleet of benchmarks/fleet: speeds that differ by a factor of
ten, ten regions, home lines of 20 to 1,000 Mbit/s. No part of the cores is replaced by a formula; computing and sending
take virtual time. All peers join within a second. Then a pass opens, and the measurement begins. It ends after
`--steps` steps, or after `--seconds` virtual seconds if these pass sooner (with 10,000 peers this is a part of a step).
CPU time is that of this thread. Headers are encoded and decoded by swarm/net/wire for a sample of the peers.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.control_weights import ControlWeights
from benchmarks.fleet.optimum import optimum
from benchmarks.fleet.plan import FleetPlan, workload
from benchmarks.fleet.traffic import FROM
from benchmarks.fleet.workload import EXACT
from benchmarks.fleet.world import COORDINATOR
from benchmarks.results import write_results
from swarm.protocol.coordinator.placement.churn import PRIOR_PER_S, replica_cap

STAGES = {100: 4, 1_000: 16, 10_000: 64}
SAMPLES = 200
"""Number of peers whose streams with the coordinator are really encoded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="100,1000,10000")
    parser.add_argument("--stages", type=int, help="instead of 4, 16 and 64")
    parser.add_argument("--microbatches", type=int, default=8, help="of a step, for each replica of a stage")
    parser.add_argument("--averaging", default=EXACT, help="none, dither:1, int8, int4, int2 or powersgd:RANK")
    parser.add_argument("--offers", action="store_true", help="peers say what they can do when they come")
    parser.add_argument("--departures", type=float, default=0.0, help="per peer and hour")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual, from the opening of the first pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for peers in map(int, options.peers.split(",")):
        stages = options.stages or STAGES.get(peers) or max(1, peers // 64)
        plan = FleetPlan(
            peers,
            stages,
            options.microbatches,
            options.seed,
            workload(options.averaging),
            departures_per_node_hour=options.departures,
            offers=options.offers,
        )
        rows.append(measure(plan, options.steps, options.seconds))
        print(json.dumps(rows[-1], indent=1), flush=True)
    write_results(options.out, "scale", rows=rows)


def measure(plan: FleetPlan, steps: int, seconds: float) -> dict[str, Any]:
    """Run the plan from the opening of its first pass. CPU seconds are those of the coordinator's core and streams."""
    every = max(1, plan.peers // SAMPLES)
    weights = ControlWeights(COORDINATOR, every)
    world = plan.world(24 * 3600.0, weights)
    start = time.thread_time()
    world.run(3600.0, 1 << 62, lambda: world.journal.counts["PassOpened"] > 0)
    opening_s, opened_at = world.stopwatch.seconds, world.now
    calls, joined = world.stopwatch.calls, world.links.traffic.control()
    wire_s = weights.seconds * every
    world.run_steps(steps, opened_at + seconds)
    virtual_s = world.now - opened_at
    here = [peer.machine for peer in world.peers()]
    best = optimum(here, plan.workload, plan.stages)
    control = world.links.traffic.control()
    cpu_s = world.stopwatch.seconds - opening_s
    wired_s = weights.seconds * every - wire_s
    largest = max(
        (
            (count.largest, kind)
            for (way, kind), count in world.links.traffic.counts.items()
            if way == FROM and kind != "Frame"
        ),
        default=(0, ""),
    )
    done = world.journal.steps
    computed = sum(peer.computed for peer in world.all_peers())
    row: dict[str, Any] = {
        "peers": plan.peers,
        "stages": plan.stages,
        "replicas": plan.replicas,
        "microbatches": plan.microbatches,
        "virtual_s": round(virtual_s, 1),
        "steps": len(done),
        "step_s": [round(step.seconds, 1) for step in done],
        "step_s_at_the_optimum": round(plan.microbatches / best, 1),
        "of_the_optimum": round(len(done) * plan.microbatches / best / virtual_s, 3) if done else None,
        "computed_per_microbatch_and_stage": round(computed / (len(done) * plan.microbatches * plan.stages), 3)
        if done
        else None,
        "control_messages_per_s": round((control.messages - joined.messages) / virtual_s),
        "control_bytes_per_peer_and_s": round((control.nbytes - joined.nbytes) / virtual_s / plan.peers),
        "largest_message": {"kind": largest[1], "bytes": largest[0]},
        "coordinator_cpu_s_until_open": round(opening_s, 2),
        "coordinator_core_cpu_per_s": round(cpu_s / virtual_s, 4),
        "coordinator_wire_cpu_per_s": round(wired_s / virtual_s, 4),
        "coordinator_us_per_input": round(1e6 * cpu_s / max(1, world.stopwatch.calls - calls), 1),
        "by_input_us": {
            kind: round(1e6 * spent / count, 1) for kind, (count, spent) in sorted(world.stopwatch.by_input.items())
        },
        "amendments": world.journal.counts["StageAmended"],
        "simulator_cpu_s": round(time.thread_time() - start, 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if done:
        reduce_s = done[-1].decided_at - done[-1].sealed_at
        row["reduce_s"] = round(reduce_s, 1)
        row["replica_cap"] = replica_cap(PRIOR_PER_S, reduce_s, plan.microbatches, 1)
    return row


if __name__ == "__main__":
    main()
