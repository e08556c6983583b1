"""Real peers: one that swallows work is given little of it, and one moves to the stage that has lost its replicas."""

from __future__ import annotations

from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import (
    MicrobatchForwarded,
    PassOpened,
    PeerFenced,
    PeerJoined,
    PeerLost,
    PeerMoved,
    StateFetched,
    StepApplied,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3")
STEPS = 25


def test_a_black_hole_is_given_less_than_a_twentieth(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """p0 accepts, says that it is there, and computes nothing from its first microbatch of step 2 on."""
    swarm = make_swarm("none", f"run.steps={STEPS}", "timing.step_budget_s=24")
    swarm.coordinate()
    swarm.join_stages(PEERS, {"p0": ("--fault=swallow@MicrobatchForwarded,pass_id=1:2",)})
    swarm.finish()
    p0 = swarm.peers["p0"]
    assert p0.of(MicrobatchForwarded, pass_id="1:2"), "until then it worked"
    assert p0.of(MicrobatchForwarded)[-1].pass_id == "1:2", "and not after that"
    fences = swarm.coordinator.of(PeerFenced)
    assert {fence.actor for fence in fences} == {p0.actor}
    assert not swarm.coordinator.of(PeerLost), "it went on saying that it is there"
    given = [len(fence.finished) + len(fence.unfinished) for fence in fences]
    count = swarm.manifest.batch.microbatches
    share = sum(given) / (count * (STEPS - 2) + sum(given))
    print(f"given {given} of {count} in each of {STEPS - 2} steps: {share:.1%} of all attempts at its stage")
    assert len(given) > 1, "it was tried again"
    assert set(given[1:]) == {1}, "and with a single microbatch"
    assert share < 0.05
    swarm.assert_equal(reference(swarm))


def test_a_peer_moves_to_the_stage_that_has_lost_its_replicas(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """Five peers; p1 dies, and stage 1 has one left and stage 0 three: one of those moves, and nobody waits for it."""
    steps = 150
    swarm = make_swarm("none", f"run.steps={steps}", "swarm.max_replicas=0", "timing.step_budget_s=30")
    swarm.coordinate()
    swarm.join_stages(PEERS)
    swarm.coordinator.wait_for(StepDecided, 2)
    swarm.join("p4")
    p1, p4 = swarm.peers["p1"], swarm.peers["p4"]
    assert swarm.coordinator.wait_for(PeerJoined, actor=p4.actor).stage == 0
    p4.wait_for(StepApplied)
    p1.kill()
    moved = swarm.coordinator.wait_for(PeerMoved)
    swarm.finish()
    assert swarm.coordinator.of(PeerLost)[0].actor == p1.actor
    assert (moved.source, moved.stage) == (0, 1)
    assert "stage 1 is the slowest" in moved.reason and moved.gain > moved.cost >= 0
    assert len(swarm.coordinator.of(PeerMoved)) == 1, "no thrash"
    mover = next(peer for peer in swarm.peers.values() if peer.actor == moved.actor)
    assert [(fetched.stage, fetched.version > 0) for fetched in mover.of(StateFetched)][-1] == (1, True)
    at = swarm.coordinator.at(PeerMoved)
    after = [event.replicas for when, event in swarm.coordinator.log if isinstance(event, PassOpened) and when > at]
    assert after[0] == [2, 1] and after[-1] == [2, 2]
    assert all(opened in ([2, 1], [2, 2]) for opened in after)
    terms = {event.term for event in swarm.coordinator.of(StepDecided)}
    assert terms == {1}, "a move needs no new term"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
