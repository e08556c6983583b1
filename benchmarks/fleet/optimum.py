"""The most that given machines can do, whatever the protocol: a bound on the flow of microbatches through the stages.

Each microbatch visits every stage once, forward and backward. A machine can do at most so many visits a second as its
compute, its line up and its line down allow: frames cross a boundary once as an activation and once as a gradient, so a
peer of a middle stage sends two and receives two of them for each visit, at the ends one. A rate of the swarm is
possible only if the machines can be shared out over the stages (in fractions, even) so that every stage has it; the
largest such rate is found exactly. Latency, the fill and drain of a step, the reduce and all repeats are not counted:
no protocol reaches the bound, a synchronous one with steps of finite length less than others.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.workload import Workload


def visits_per_s(machine: FleetMachine, workload: Workload, frames: int) -> float:
    """`frames`: that cross its line each way for a visit, 0 to 2."""
    busiest = max(
        workload.seconds / machine.speed,
        frames * workload.frame_bytes / machine.up,
        frames * workload.frame_bytes / machine.down,
    )
    return 1.0 / busiest


def optimum(machines: Iterable[FleetMachine], workload: Workload, stages: int) -> float:
    """Microbatches a second through all stages, at most.

    Two kinds of stages, ends and middles: those machines go to the ends that gain most from it, so sorted by that
    ratio some first ones serve the ends, one perhaps both, and the others the middle.
    """
    if stages < 3:
        frames = stages - 1  # of a single stage nothing crosses but tokens
        return sum(visits_per_s(each, workload, frames) for each in machines) / stages
    ends, middles = 2, stages - 2
    rates = [(visits_per_s(each, workload, 1), visits_per_s(each, workload, 2)) for each in machines]
    rates.sort(key=lambda rate: rate[0] / rate[1], reverse=True)
    at_ends, in_middle = 0.0, sum(middle for _, middle in rates)
    for end, middle in rates:
        if (at_ends + end) / ends >= (in_middle - middle) / middles:
            # x of this one at the ends: (at_ends + x·end) ÷ ends = (in_middle − x·middle) ÷ middles
            x = (in_middle / middles - at_ends / ends) / (end / ends + middle / middles)
            return (at_ends + x * end) / ends
        at_ends += end
        in_middle -= middle
    return at_ends / ends
