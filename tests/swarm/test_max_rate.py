"""Peers behind slow home links, with `--max-rate`: slower, but nobody is taken for dead, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from swarm.events import PeerFenced, ProcessStarted, StepAborted, StepDecided, TrafficMeasured

PEERS = ("p0", "p1", "p2", "p3")


def test_swarm_of_slow_links(make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]) -> None:
    """A step takes seconds on these links, several times what a frame may take before it is asked for again."""
    swarm = make_swarm("int8", "run.steps=2", "timing.step_budget_s=30", "checkpoint.every=2")
    swarm.coordinate("--max-rate=2Mbit")
    swarm.join_stages(PEERS, {name: ("--max-rate=2Mbit",) for name in PEERS})
    swarm.finish()
    assert len(swarm.coordinator.of(StepDecided)) == 2
    assert not swarm.coordinator.of(PeerFenced) and not swarm.coordinator.of(StepAborted)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
    for process in (swarm.coordinator, *swarm.peers.values()):
        assert_within_limit(process, 250_000)


def assert_within_limit(process: Process, rate: int) -> None:
    assert process.of(ProcessStarted)[-1].max_rate == rate
    sent = process.of(TrafficMeasured)[-1].sent
    seconds = process.log[-1][0] - process.at(ProcessStarted)
    assert sum(sent.values()) - sent["control"] <= rate * (seconds + 0.1) + 1
    assert sum(sent.values()) > sent["control"]


def test_who_has_a_slow_line_sums_less(make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]) -> None:
    """Three replicas: who sums its share sends more than its own part; the slow one does not."""
    wide = ("model.dim=128", "model.ffn_dim=384", "model.cuts=[]")
    swarm = make_swarm("int8", *wide, "run.steps=3", "swarm.replicas=3", "swarm.max_replicas=3", "checkpoint.every=3")
    swarm.coordinate()
    swarm.join_stages(PEERS[:3], {name: ("--max-rate=80Mbit",) for name in PEERS[1:]} | {"p0": ("--max-rate=4Mbit",)})
    swarm.finish()
    slow, *others = (swarm.peers[name].of(TrafficMeasured)[-1].sent["reduce"] for name in PEERS[:3])
    assert slow < 0.8 * sum(others) / 2, (slow, others)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
