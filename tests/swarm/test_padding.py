"""Peers far from each other, whose system sends slowly after pauses: they send padding, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from peers.chaos.internet import Namespaces
from peers.chaos.namespace import why_not
from peers.chaos.pipe import Shape
from peers.chaos.scenario import HostPlan, NetworkPlan
from swarm.events import SlowAfterPauses, StepAborted, StepDecided, TrafficMeasured

PEERS = ("p0", "p1", "p2", "p3")
LARGE = ("model.dim=128", "batch.microbatches=4")
"""Frames of 32 kB: too large for the first ten packets of a connection."""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_peers_far_away_send_padding(make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]) -> None:
    swarm = make_swarm("none", *LARGE, "run.steps=6", "checkpoint.every=6")
    with Namespaces(NetworkPlan(Shape(delay_s=0.04))) as internet:
        places = {name: internet.add(HostPlan(name)) for name in ("coordinator", *PEERS)}
        swarm.coordinator.namespace = places["coordinator"].namespace
        swarm.coordinate(*places["coordinator"].listening)
        for name in PEERS:
            swarm.on_host(name, places[name].namespace)
            swarm.join(name, *places[name].joining)
        swarm.finish()
    assert len(swarm.coordinator.of(StepDecided)) == 6 and not swarm.coordinator.of(StepAborted)
    swarm.assert_equal(reference(swarm))
    for peer in swarm.peers.values():
        (said,) = peer.of(SlowAfterPauses)
        assert 0.08 <= said.rtt_s < 1.0
        assert padding(peer) > 30_000
    assert padding(swarm.coordinator) == 0


def padding(process: Process) -> int:
    """Bytes that it sent."""
    return process.of(TrafficMeasured)[-1].sent["padding"]
