"""The most that given machines can do under any protocol: a bound on the flow of microbatches through the stages.

Each microbatch visits every stage once, forward and backward. The number of visits per second at a machine is limited
by its compute and by its line in both directions. A frame crosses a boundary once as an activation and once as a
gradient, so a peer of a middle stage sends two and receives two of them for each visit, and a peer at an end one. A
rate of the swarm is possible only if the machines can be divided among the stages (even in fractions) so that every
stage has it; the largest such rate is computed exactly. Latency, the beginning and end of a step, the reduce and all
repeats are not counted. So no protocol reaches the bound, least of all a synchronous one with steps of finite length.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.workload import Workload


def visits_per_s(machine: FleetMachine, workload: Workload, frames: int) -> float:
    """Visits per second at a machine. `frames`: number of frames that cross its line in each direction per visit, 0 to
    2.
    """
    busiest = max(
        workload.seconds / machine.speed,
        frames * workload.frame_bytes / machine.up,
        frames * workload.frame_bytes / machine.down,
    )
    return 1.0 / busiest


def optimum(machines: Iterable[FleetMachine], workload: Workload, stages: int) -> float:
    """The largest possible number of microbatches per second through all stages.

    There are two kinds of stages, ends and middles. The machines that gain most from it go to the ends. So with the
    machines sorted by that gain, the first ones serve the ends, one perhaps both, and the others the middle.
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
