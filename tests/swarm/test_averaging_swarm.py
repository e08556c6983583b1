"""Compressed averaging in real processes: a replica is killed in a later step; the record says who added what."""

import pytest
from conftest import MakeSwarm
from swarm_processes import Swarm

from peers.coordinator.record import read_decisions
from peers.run.home import Home
from swarm.events import PeerFenced, ProcessStarted, StateFetched

PEERS = ("p0", "p1", "p2", "p3")
NOBODY, BOTH = (-1, -1), (0, 1)


@pytest.fixture(params=[pytest.param("int4", marks=pytest.mark.long), "powersgd:2"])
def swarm(request: pytest.FixtureRequest, make_swarm: MakeSwarm) -> Swarm:
    return make_swarm(
        "int8", f"sums.averaging={request.param}", "run.steps=16", "timing.step_budget_s=600"
    )  # for p1 to come back to


def carried(swarm: Swarm, stage: int) -> list[tuple[int, ...]]:
    """By step, from the coordinator's record."""
    decisions = read_decisions(Home(swarm.coordinator.home).decisions, swarm.manifest.hash)
    return [tuple(each.carried for each in d.outcomes[stage].contributions) for d in decisions]


def test_a_replica_is_killed_while_it_averages(swarm: Swarm) -> None:
    swarm.coordinate()
    faults = {"p1": ("--fault=kill@ReduceStarted:1,attempt=1:3/s1*",), "p3": ("--fault=stop@StepApplied,step=5",)}
    swarm.join_stages(PEERS, faults)
    swarm.rejoin("p1", sibling="p3")
    p1 = swarm.peers["p1"]
    victim = p1.of(ProcessStarted)[0].actor
    swarm.finish()
    assert [event.actor for event in swarm.coordinator.of(PeerFenced, pass_id="1:3")] == [victim]
    assert all(event.source != "own checkpoint" for event in p1.of(StateFetched)), "its disk may be of another history"
    assert carried(swarm, 0) == [NOBODY] + [BOTH] * 15
    assert carried(swarm, 1)[:3] == [NOBODY, BOTH, BOTH]
    assert len(carried(swarm, 1)[3]) == 1, "its sibling has done all of that step, and compressed nothing"
    swarm.assert_replicas_identical()
    swarm.assert_command_says_equal()
