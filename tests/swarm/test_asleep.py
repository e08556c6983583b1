"""A suspended laptop: process and libp2p daemon stand still together. The same incarnation comes back by itself."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import PeerFenced, PeerJoined, PeerLost, ProcessStarted, StepApplied, StepDecided


def test_a_peer_that_slept_through_whole_steps_is_back_in_a_later_one(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "run.steps=16", "timing.step_budget_s=12")
    swarm.coordinate()
    paced = dict.fromkeys(("p0", "p1", "p2", "p3"), ("--pace=0.04,0.08",))
    paced["p0"] += ("--fault=stop@MicrobatchForwarded:1,pass_id=1:2",)
    swarm.join_stages(tuple(paced), paced)
    p0 = swarm.peers["p0"]
    p0.wait_stopped()
    daemons = [child for child in psutil.Process(p0.pid).children() if "p2pd" in child.name()]
    assert len(daemons) == 1
    daemons[0].suspend()
    swarm.coordinator.wait_for(PeerLost, actor=p0.actor)
    swarm.coordinator.wait_for(StepDecided, step=5)  # it is awake again in another step
    known = len(swarm.coordinator.of(PeerJoined, actor=p0.actor))
    daemons[0].resume()
    p0.resume()
    swarm.coordinator.wait_for(PeerJoined, known + 1, actor=p0.actor)
    swarm.finish()
    assert len(p0.of(ProcessStarted)) == 1, "the same process"
    assert swarm.coordinator.of(PeerFenced, actor=p0.actor, pass_id="1:2")
    applied = {event.step for event in p0.of(StepApplied)}
    assert not applied & {3, 4} and max(applied) > 5, "it slept through these, and took part again"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
