"""Newcomers measure themselves, once, and are given no stage that does not fit into their memory."""

from __future__ import annotations

import signal
from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import MachineMeasured, PeerJoined, StepApplied


def test_a_newcomer_measures_itself_once_and_one_that_is_too_small_stands_by(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "run.steps=12", "swarm.replicas=1", "timing.step_budget_s=600")
    swarm.coordinate()
    swarm.join("small", "--max-memory=100kB")
    refused = swarm.coordinator.wait_for(PeerJoined)
    assert refused.stage is None and "it has 0.0001 GB of memory to plan with" in refused.reason
    first = swarm.join("p0", "--fault=stop@StepApplied,step=3", capacity=None)
    swarm.coordinator.wait_for(PeerJoined, 2)
    second = swarm.join("p1", "--max-rate=80Mbit", capacity=None)

    (own,) = [first.wait_for(MachineMeasured)]
    assert own.forward_s and own.backward_s and own.capacity > 0 and not own.kept and own.memory == 10**9
    assert own.uplink and own.downlink, "the coordinator answers both probes"
    assert second.wait_for(MachineMeasured).uplink == 10_000_000, "the limit says it"

    first.wait_for(StepApplied, step=3)
    first.wait_stopped()
    first.signal(signal.SIGKILL)
    first.wait_end()
    swarm.join("p0", capacity=None)
    again = first.wait_for(MachineMeasured, 2)
    assert again.kept and (again.capacity, again.forward_s) == (own.capacity, own.forward_s)
    assert (again.uplink, again.downlink) == (own.uplink, own.downlink)
    swarm.finish(names=("p0", "p1"))
    assert {e.stage for e in swarm.peers["small"].of(PeerJoined)} <= {None}
    swarm.assert_equal(reference(swarm))
