"""Volunteers who want their machine back: what they have begun is finished or handed on, and nobody does it twice.

Two stages, two replicas: p0 and p2 hold stage 0, p1 and p3 stage 1; p4 stands by.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest
from conftest import MakeSwarm
from swarm_processes import EVEN, Process, Swarm

from swarm.events import (
    Gathered,
    MicrobatchAccumulated,
    MicrobatchesReleased,
    MicrobatchForwarded,
    PeerFenced,
    PeerJoined,
    PeerLeaving,
    PeerLost,
    ProcessStarted,
    ProcessStopped,
    ReduceCancelled,
    RolledBack,
    StateFetched,
    StepAborted,
    StepApplied,
    StepDecided,
)

Reference = Callable[[Swarm], tuple[str, ...]]
PEERS = ("p0", "p1", "p2", "p3")
HIT = "1:2"
SURE_S = 10.0
"""Within so many seconds a volunteer has the machine back."""
SETS = ("run.steps=8", "timing.step_budget_s=600")


def interrupted(process: Process) -> float:
    """A process that has stopped itself gets Ctrl-C the moment it goes on. Returns when."""
    process.wait_stopped()
    process.signal(signal.SIGINT)
    at = time.monotonic()
    process.signal(signal.SIGCONT)
    return at


def gone(process: Process, since: float) -> str:
    """It has left well and in time; returns why it could."""
    assert process.wait_end(SURE_S) == 0
    assert time.monotonic() - since < SURE_S
    assert process.of(PeerLeaving)
    (stopped,) = process.of(ProcessStopped)
    return stopped.reason


def gone_together(leavers: list[Process]) -> list[str]:
    """They have stopped themselves, get Ctrl-C together, and have left well; returns why they could."""
    for leaver in leavers:
        leaver.wait_stopped()
    since = [interrupted(leaver) for leaver in leavers]
    return [gone(leaver, at) for leaver, at in zip(leavers, since, strict=True)]


def standing_still(make_swarm: MakeSwarm) -> Swarm:
    """p0 has stopped itself with one microbatch accumulated, the next not begun; p1, of the other stage, is stopped."""
    swarm = make_swarm("int8", *SETS)
    swarm.coordinate()
    swarm.join_stages(PEERS, {"p0": (f"--fault=stop@MicrobatchAccumulated,pass_id={HIT}", "--slots=1")})
    swarm.peers["p0"].wait_stopped()
    swarm.peers["p1"].signal(signal.SIGSTOP)
    swarm.peers["p1"].wait_stopped()
    return swarm


def accumulated(swarm: Swarm, names: tuple[str, ...], pass_id: str = HIT) -> Counter[int]:
    """How often each microbatch of a pass was accumulated by these peers together."""
    return Counter(e.microbatch for name in names for e in swarm.peers[name].of(MicrobatchAccumulated, pass_id=pass_id))


def once(swarm: Swarm) -> Counter[int]:
    return Counter(range(swarm.manifest.batch.microbatches))


def undisturbed(swarm: Swarm) -> None:
    for kind in (PeerFenced, StepAborted, RolledBack):
        assert not swarm.coordinator.of(kind)
    assert accumulated(swarm, ("p0", "p2")) == accumulated(swarm, ("p1", "p3")) == once(swarm)


@pytest.mark.parametrize(
    "moment",
    [f"MicrobatchForwarded:1,pass_id={HIT}", f"MicrobatchAccumulated:1,pass_id={HIT}"],
    ids=("forward", "backward"),
)
def test_who_leaves_hands_on_what_it_has_not_begun(moment: str, make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", *SETS)
    swarm.coordinate()
    options = dict.fromkeys(PEERS, (EVEN,))
    options["p0"] += (f"--fault=stop@{moment}", "--slots=1")  # one at a time: it has more to hand on
    swarm.join_stages(PEERS, options)
    p0 = swarm.peers["p0"]
    why = gone(p0, interrupted(p0))
    swarm.finish(names=("p1", "p2", "p3"))
    assert why == "left: others hold stage 0"
    (said,) = swarm.coordinator.of(PeerLeaving)
    assert said.actor == p0.actor
    assert [e.reason for e in swarm.coordinator.of(PeerLost, actor=p0.actor)] == [why]
    assert swarm.coordinator.of(MicrobatchesReleased, actor=p0.actor), "it had something to hand on"
    assert not p0.of(StepApplied, step=3), "it had no part in the next step"
    undisturbed(swarm)
    swarm.assert_equal(reference(swarm))


def test_who_leaves_while_its_stage_reduces_finishes_that(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", *SETS)
    swarm.coordinate()
    swarm.join_stages(PEERS, {"p0": (f"--fault=stop@ReduceStarted,attempt={HIT}/s0*",)})
    p0 = swarm.peers["p0"]
    why = gone(p0, interrupted(p0))
    swarm.finish(names=("p1", "p2", "p3"))
    assert why == "left: others hold stage 0"
    assert not [e for e in swarm.peers["p2"].of(ReduceCancelled) if e.attempt.startswith(HIT)]
    undisturbed(swarm)
    swarm.assert_equal(reference(swarm))


def test_two_leave_at_once(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = standing_still(make_swarm)
    reasons = gone_together([swarm.peers[name] for name in ("p0", "p1")])
    swarm.finish(names=("p2", "p3"))
    assert reasons == ["left: others hold stage 0", "left: others hold stage 1"]
    undisturbed(swarm)
    swarm.assert_equal(reference(swarm))


def test_the_last_replica_hands_on_its_state_before_it_leaves(make_swarm: MakeSwarm, reference: Reference) -> None:
    """Both of stage 0 leave in the same step, in a run without a checkpoint: the standby has their state."""
    swarm = make_swarm("int8", *SETS, "checkpoint.every=100")
    swarm.coordinate()
    faults = {name: (f"--fault=stop@MicrobatchForwarded,pass_id={HIT}",) for name in ("p0", "p2")}
    swarm.join_stages((*PEERS, "p4"), faults)
    leavers = [swarm.peers[name] for name in ("p0", "p2")]
    assert gone_together(leavers) == ["left: others hold stage 0"] * 2
    swarm.finish(names=("p1", "p3", "p4"))
    fetched = swarm.peers["p4"].of(StateFetched)  # two if the step took longer than fetching the state before it
    gathered = [event for event in swarm.peers["p4"].of(Gathered) if event.what.startswith("state")]
    assert 1 <= len(fetched) == len(gathered) <= 2
    assert all(event.stage == 0 and event.source.endswith(("1 replica", "2 replicas")) for event in fetched)
    assert all(event.by_donor.keys() <= {leaver.actor for leaver in leavers} for event in gathered)
    assert swarm.coordinator.of(PeerJoined, actor=swarm.peers["p4"].actor, stage=0)
    undisturbed(swarm)
    swarm.assert_equal(reference(swarm))


def test_who_cannot_be_let_go_in_time_goes_and_its_work_is_done_again(
    make_swarm: MakeSwarm, reference: Reference
) -> None:
    """The step stands still, because a peer of the other stage does."""
    swarm = standing_still(make_swarm)
    p0, p1 = swarm.peers["p0"], swarm.peers["p1"]
    gone(p0, interrupted(p0))
    fenced = swarm.coordinator.wait_for(PeerFenced, actor=p0.actor)  # by the coordinator's clock, or when it has gone
    fence = fenced.finished
    assert fence, "it had accumulated something, which counts no more"
    p1.signal(signal.SIGCONT)
    swarm.finish(names=("p1", "p2", "p3"))
    twice = accumulated(swarm, ("p0", "p2")) - once(swarm)
    assert set(twice) == set(fence)
    swarm.assert_equal(reference(swarm))


def test_a_second_interrupt_ends_a_peer_at_once(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = standing_still(make_swarm)
    p0, p1 = swarm.peers["p0"], swarm.peers["p1"]
    interrupted(p0)
    p0.wait_for(PeerLeaving)
    p0.signal(signal.SIGINT)
    assert p0.wait_end(SURE_S) == -signal.SIGINT
    swarm.coordinator.wait_for(PeerFenced, actor=p0.actor)
    p1.signal(signal.SIGCONT)
    swarm.finish(names=("p1", "p2", "p3"))
    swarm.assert_equal(reference(swarm))


def test_an_interrupted_coordinator_finishes_the_open_step(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", *SETS, "timing.recruit_after_s=30")
    swarm.coordinate("--fault=stop@PassOpened,pass_id=1:2")
    swarm.join_stages(PEERS)
    coordinator = swarm.coordinator
    interrupted(coordinator)
    assert coordinator.wait_end(SURE_S) == 130
    (stopped,) = coordinator.of(ProcessStopped)
    assert stopped.reason == "interrupted: 3 of 8 steps are decided. Peers keep their state"
    for peer in swarm.peers.values():
        peer.wait_for(StepApplied, step=2)
    swarm.coordinate()
    swarm.finish()
    assert len(coordinator.of(ProcessStarted)) == 2
    assert [e.term for e in coordinator.of(StepDecided)] == [1, 1, 1, 2, 2, 2, 2, 2]
    assert accumulated(swarm, ("p0", "p2")) == once(swarm)
    assert not accumulated(swarm, PEERS, "2:2"), "no step was done again"
    assert not [e for peer in swarm.peers.values() for e in peer.of(MicrobatchForwarded, pass_id="2:2")]
    swarm.assert_equal(reference(swarm))
