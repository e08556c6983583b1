"""Fewer machines than stages: several peers in one process, as their owner says or as the coordinator asks."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
from conftest import MakeSwarm
from swarm_processes import Swarm

from peers.demo.event_tail import EventTail
from peers.run.home import Home
from peers.runtime.control_client import send
from swarm.events import (
    CheckpointArchived,
    PeerDescribed,
    PeerJoined,
    PeerLost,
    ProcessStarted,
    ProcessStopped,
    RolledBack,
    SeatAsked,
    SeatLeft,
    SeatTaken,
    StepAborted,
    StepApplied,
    StepDecided,
)


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
    described = [(e.actor.partition(".")[0], e.machine["process"]) for e in swarm.coordinator.of(PeerDescribed)]
    together = {process for peer, process in described if peer in names}
    assert len(together) == 1 and together < {process for _, process in described}, "by it the dashboard links them"
    assert swarm.coordinator.of(RolledBack) or not swarm.coordinator.of(PeerLost)[2:]
    assert not psutil.pid_exists(two.pid)
    swarm.assert_equal(reference(swarm))


def test_two_machines_hold_three_stages_until_a_third_one_comes(make_swarm: MakeSwarm) -> None:
    """Nobody says how many seats: one of the two takes a further peer on, which leaves when it is not needed.

    No pace, which would make all stages equally slow: the last one has half of the layers and the head, so that the
    third machine is placed there.
    """
    endless = ("run.steps=100000", "checkpoint.every=1")  # until the third machine has come
    swarm = make_swarm("int8", "model.cuts=[1,2]", *endless, "swarm.replicas=1", "swarm.start_timeout_s=1")
    swarm.coordinate()
    for name in ("one", "two"):
        swarm.join(name)
    asked = swarm.coordinator.wait_for(SeatAsked)
    host = next(p for p in swarm.peers.values() if p.actor == asked.actor)
    taken = host.wait_for(SeatTaken)
    second = Home(host.home / "seats" / "2")
    assert (taken.seat, taken.home) == (2, str(second.path))
    swarm.coordinator.wait_for(StepDecided, 2)
    third = swarm.join("three")
    left = host.wait_for(SeatLeft)
    assert left.seat == 2 and "has its 1 replicas without it" in left.reason
    third.wait_for(StepApplied)
    end = swarm.coordinator.of(StepDecided)[-1].step + 4
    send(swarm.coordinator.home, "stop_after", str(end), by="the test", why="all has been seen", timeout=30.0)
    swarm.finish()
    assert not swarm.coordinator.of(StepAborted)
    log = [event for _, event in EventTail(second.events).read()]
    assert [e for e in log if isinstance(e, StepApplied)] and [e for e in log if isinstance(e, ProcessStopped)]
    swarm.assert_command_says_equal(whole=False)


def test_the_one_machine_that_is_left_holds_all_stages(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "run.steps=12", "swarm.replicas=1", "checkpoint.every=1")
    swarm.coordinate()
    swarm.join_stages(["first", "last"], {"last": ["--fault=kill@StepApplied,step=4"]})
    assert swarm.peers["last"].wait_end() == -signal.SIGKILL
    asked = swarm.coordinator.wait_for(SeatAsked)
    first = swarm.peers["first"]
    assert (asked.actor, asked.stage, asked.seats) == (first.actor, 1, 2)
    swarm.finish(["first"])
    assert first.of(SeatTaken)
    assert swarm.coordinator.of(StepDecided)[-1].step == 11
    swarm.assert_equal(reference(swarm))
