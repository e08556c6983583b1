"""Real peers: one that swallows work is given little of it, and one moves to the stage that has lost its replicas."""

from __future__ import annotations

from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import (
    MicrobatchForwarded,
    PassOpened,
    PeerFenced,
    PeerLost,
    PeerMoved,
    StateFetched,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3")
STEPS = 25
PACE = "--pace=0.04,0.08"
"""One peer alone takes a second and a half for its stage's part of a step: so steps are left when one may move."""


def test_a_black_hole_is_given_less_than_a_twentieth(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """p0 accepts, says that it is there, and computes nothing from its first microbatch of step 2 on."""
    swarm = make_swarm("none", f"run.steps={STEPS}", "timing.step_budget_s=24")
    swarm.coordinate()
    swallows = "--fault=swallow@MicrobatchForwarded,pass_id=1:2"
    pace = "--pace=0.02,0.04"  # so slow that it is back before the last step
    swarm.join_stages(PEERS, {"p0": (swallows, pace)}, alike=(pace,))
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
    """Three peers a stage, as fast as each other: when stage 0 has lost two, one of the others moves there."""
    planned = ("swarm.replicas=3", "swarm.max_replicas=0", "timing.step_budget_s=8")  # nobody moves for twice as long
    swarm = make_swarm("none", "run.steps=26", "batch.microbatches=12", *planned)
    swarm.coordinate()
    swarm.join_stages((*PEERS, "p4", "p5"), alike=(PACE,))
    victims = [swarm.peers[name] for name in ("p0", "p2")]
    swarm.coordinator.wait_for(StepDecided, 3)
    for victim in victims:
        victim.kill()
    moved = swarm.coordinator.wait_for(PeerMoved)
    swarm.finish()
    assert {victim.actor for victim in victims} <= {lost.actor for lost in swarm.coordinator.of(PeerLost)}
    assert (moved.source, moved.stage) == (1, 0)
    assert "stage 0 is the slowest" in moved.reason and moved.gain > moved.cost >= 0
    assert len(swarm.coordinator.of(PeerMoved)) == 1, "no thrash"
    mover = next(peer for peer in swarm.peers.values() if peer.actor == moved.actor)
    assert [(fetched.stage, fetched.version > 0) for fetched in mover.of(StateFetched)][-1] == (0, True)
    log = [event for _, event in swarm.coordinator.log]
    after = [event.replicas for event in log[log.index(moved) :] if isinstance(event, PassOpened)]
    assert after[0] == [1, 2], "the next step opens without it"
    assert after[-1] == [2, 2]
    assert {event.term for event in swarm.coordinator.of(StepDecided)} == {1}, "a move needs no new term"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
