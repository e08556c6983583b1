"""Two machines hold four stages: each runs two peers in one process."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from conftest import MakeSwarm
from swarm_processes import Swarm

from peers.demo.event_tail import EventTail
from peers.home import Home
from swarm.events import CheckpointArchived, PeerJoined, PeerLost, ProcessStarted, RolledBack, StepApplied


def test_two_machines_with_two_seats_each_train_four_stages_and_one_of_them_dies(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "model.cuts=[1,2,3]", "run.steps=12", "swarm.replicas=1", "timing.step_budget_s=600")
    swarm.coordinate()
    one = swarm.join("one", "--seats=2", "--fault=stop@StepApplied,step=5")
    swarm.coordinator.wait_for(PeerJoined, 2)
    two = swarm.join("two", "--seats=2")
    one.wait_stopped()
    assert {e.stage for e in swarm.coordinator.of(PeerJoined)} == {0, 1, 2, 3}
    swarm.coordinator.wait_for(CheckpointArchived, version=4)
    one.kill()
    one.wait_end()
    swarm.coordinator.wait_for(PeerLost, 2)
    swarm.join("one", "--seats=2")
    swarm.finish()
    second = [event for _, event in EventTail(Home(two.home / "seats" / "2").events).read()]
    assert [e for e in second if isinstance(e, StepApplied)], "the second seat has a home and a log of its own"
    names = {e.actor.partition(".")[0] for e in (*two.of(ProcessStarted), *second) if isinstance(e, ProcessStarted)}
    assert len(names) == 2
    assert swarm.coordinator.of(RolledBack) or not swarm.coordinator.of(PeerLost)[2:]
    assert not psutil.pid_exists(two.pid)
    swarm.assert_equal(reference(swarm))
