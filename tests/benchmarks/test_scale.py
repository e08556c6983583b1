"""A small scale simulation: what a message costs the coordinator, and weighs, does not grow with the swarm."""

import dataclasses
import sys
from types import FrameType
from typing import Any

import pytest

from benchmarks.control_weights import ControlWeights
from benchmarks.fleet.plan import FleetPlan
from benchmarks.fleet.traffic import FROM
from benchmarks.fleet.world import COORDINATOR
from benchmarks.fleet_goodput import CONTROL_BYTES
from benchmarks.scale import measure
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor
from swarm.protocol.io import Received
from swarm.protocol.messages import Message, Status

HUNDRED = FleetPlan(peers=100, stages=4, microbatches_per_replica=2)


def test_a_hundred_peers_are_measured() -> None:
    row = measure(HUNDRED, steps=1, seconds=40.0)
    assert row["control_messages_per_s"] > 100 and row["coordinator_us_per_input"] > 0
    assert row["coordinator_core_cpu_per_s"] < 0.2, "a hundred peers take a small part of one core"
    assert row["largest_message"]["bytes"] < 20_000


def lines_per_status(peers: int, stages: int) -> float:
    """Lines of Python that the coordinator's core executes for a Status in an open pass, on average."""
    world = dataclasses.replace(HUNDRED, peers=peers, stages=stages).world(60.0, lambda *_: CONTROL_BYTES)
    world.run(60.0, 1 << 62, lambda: world.journal.counts["PassOpened"] > 0)
    core = world.stopwatch.core
    handle, lines, statuses = core.handle, 0, 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def counted(item: Any, now: float) -> Any:
        nonlocal statuses
        if not isinstance(item, Received) or not isinstance(item.message, Status) or core.phase is not Phase.OPEN:
            return handle(item, now)
        if now >= core._next_tick:
            return handle(item, now)  # once a heartbeat everybody is looked at
        statuses += 1
        sys.settrace(count)
        try:
            return handle(item, now)
        finally:
            sys.settrace(None)

    core.handle = counted
    world.run(world.now + 6.0, 1 << 62, lambda: statuses >= 400)
    assert statuses > 100
    return lines / statuses


@pytest.mark.parametrize(("peers", "stages"), [(160, 4), (160, 16)])
def test_what_a_status_costs_the_coordinator_does_not_grow_with_the_peers(peers: int, stages: int) -> None:
    assert lines_per_status(peers, stages) < 1.7 * lines_per_status(40, 4)


def test_what_a_peer_is_told_of_a_pass_does_not_grow_with_the_stages() -> None:
    def opening(stages: int) -> int:
        plan = dataclasses.replace(HUNDRED, peers=6 * stages, stages=stages)
        world = plan.world(60.0, ControlWeights(COORDINATOR, 1))
        world.run(60.0, 1 << 62, lambda: world.journal.counts["PassOpened"] > 0)
        world.run(world.now + 1.0, 1 << 62, lambda: False)
        return world.links.traffic.counts[FROM, "Open"].largest

    assert opening(24) < 1.2 * opening(6)


def test_control_messages_weigh_what_they_do_on_the_wire() -> None:
    weights = ControlWeights(COORDINATOR, 2)
    sampled, other = Actor("one", 1), Actor("two", 1)
    status: Message = Status(sampled, None, None, done=(1 << 400) - 1)
    first = weights(sampled, COORDINATOR, status)
    assert first > 50 and weights(other, COORDINATOR, Status(other, None, None)) == first, "like the last one"
    assert weights(sampled, COORDINATOR, Status(sampled, None, None)) < first - 40
    assert weights.sampled == 2 and weights.seconds > 0
