"""Real peers inside the run that keep others from getting on: nobody is sent away, and the answer is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from conftest import STEPS, MakeSwarm
from swarm_processes import Swarm

from peers.run.home import Home
from swarm.events import (
    CheckpointRefused,
    Evaluated,
    EvaluationDropped,
    PeerExpelled,
    PeerFenced,
    PeerIdle,
    PeerJoined,
    RolledBack,
    RunDiverged,
    RunPaused,
    StageDoubted,
    StepAborted,
    StepApplied,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3", "p4", "p5")
"""Of two stages in turn."""
REASONS = {
    "spoilt": "no other stage confirms that parameters or moments of stage 1 are not finite at the start",
    "nan": "the sums of step 0 are not finite in its stage alone",
}
NOBODY = (
    "stage 1 has no trusted peer. {} is left out: {}. Add another peer for this stage. If the run has diverged, "
    "give a lower `swarm-peer control rate`: the run then goes back to its last good checkpoint"
)


def test_two_of_six_that_say_that_they_fail_stop_nobody(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """Both in one stage: the same microbatch fails at two peers, whichever of them has it first."""
    swarm = make_swarm("int8", "swarm.max_replicas=3", "swarm.replicas=3")
    swarm.coordinate()
    fails = ("--fault=fail@PeerJoined",)
    swarm.join_stages(PEERS, {"p0": fails, "p2": fails})
    swarm.finish()
    coordinator = swarm.coordinator
    liars = {swarm.peers[name].actor for name in ("p0", "p2")}
    failed = [event for event in coordinator.of(PeerFenced) if "failed" in event.reason]
    assert liars & {event.actor for event in failed}
    assert not coordinator.of(PeerExpelled) and not coordinator.of(StepAborted)
    assert len(coordinator.of(StepDecided)) == STEPS
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_gradients_that_make_others_overflow_stop_nobody_and_are_not_in_the_result(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """One peer of the second stage sends them; whoever of the first has its microbatch cannot compute with them."""
    swarm = make_swarm("int8", "swarm.max_replicas=3", "swarm.replicas=3")
    swarm.coordinate()
    swarm.join_stages(PEERS, {"p1": ("--fault=overflow@MicrobatchAccumulated:2",)})
    swarm.finish()
    coordinator = swarm.coordinator
    liar = swarm.peers["p1"].actor
    failed = [event for event in coordinator.of(PeerFenced) if "failed" in event.reason]
    assert {event.actor for event in failed} - {liar}, "those who overflowed say so"
    assert liar in {event.actor for event in coordinator.of(PeerFenced)}, "and that it came from the liar"
    assert not coordinator.of(PeerExpelled)
    decided = coordinator.of(StepDecided)
    assert len(decided) == STEPS and all(step.scale > 0.0 for step in decided), "no step is skipped"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_who_trains_and_ignores_evaluations_holds_up_few_of_them_and_no_step(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "evaluation.every=1", "evaluation.microbatches=4", "evaluation.sample_tokens=2")
    swarm.coordinate()
    swarm.join_stages(PEERS[:4], {"p1": ("--fault=mute@PeerJoined",)})
    swarm.finish()
    coordinator, mute = swarm.coordinator, swarm.peers["p1"].actor
    asked = [event for event in coordinator.of(PeerFenced, actor=mute) if "+" in event.pass_id]
    dropped = coordinator.of(EvaluationDropped)
    assert asked or dropped, "it was asked once at least"
    assert all(mute in event.who for event in dropped)
    evaluated = {event.version for event in coordinator.of(Evaluated)}
    assert len(evaluated) >= 2, "its sibling does them then"
    assert not coordinator.of(PeerExpelled)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


@pytest.mark.parametrize("claim", ["spoilt", pytest.param("nan", marks=pytest.mark.long)])
def test_who_is_alone_in_its_stage_ends_no_run_by_what_it_says(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], claim: str
) -> None:
    """It would stop if the peer were believed. It waits, says why, and goes on as soon as somebody else comes."""
    swarm = make_swarm("int8", "swarm.max_replicas=1", "swarm.replicas=1", "divergence.skips=1")
    swarm.coordinate()
    swarm.join_stages(("p0", "p1"), {"p0": ("--seats=1",), "p1": ("--seats=1", f"--fault={claim}@PeerJoined")})
    coordinator, liar = swarm.coordinator, swarm.peers["p1"].actor
    coordinator.wait_for(StageDoubted, left_out=[liar])
    waits = coordinator.wait_for(RunPaused, reason=NOBODY.format(liar, REASONS[claim]))
    assert all(process.code is None for process in swarm.processes), waits
    swarm.join("p2")
    swarm.finish()
    assert not coordinator.of(RunDiverged) and not coordinator.of(PeerExpelled)
    decided = coordinator.of(StepDecided)
    assert len(decided) == STEPS and all(step.scale > 0.0 for step in decided), "no step is skipped"
    assert all(process.code == 0 for process in swarm.processes), swarm.words()
    swarm.assert_equal(reference(swarm))


@pytest.mark.parametrize("does", ["swallow", "fail"])
def test_a_peer_that_is_alone_in_its_stage_and_does_nothing_or_fails_is_replaced(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], does: str
) -> None:
    """Another peer stands by. It takes a place beside the idle one, fetches its state, and does its work."""
    budget = ("timing.step_budget_s=5", "timing.recruit_after_s=20")
    swarm = make_swarm("int8", "swarm.max_replicas=1", "swarm.replicas=1", *budget)
    swarm.coordinate()
    one = ("--seats=1",)
    swarm.join_stages(("p0", "p1"), {"p0": one, "p1": (*one, f"--fault={does}@StepApplied,step=1")})
    swarm.join("p2", *one)
    swarm.finish()
    coordinator, idle = swarm.coordinator, swarm.peers["p1"].actor
    found = coordinator.of(PeerIdle)[0]
    assert (found.actor, found.stage) == (idle, 1) and found.attempt.startswith("1:2")
    assert not coordinator.of(PeerExpelled) and not coordinator.of(RolledBack)
    assert len(coordinator.of(StepDecided)) == STEPS
    assert swarm.peers["p2"].of(StepApplied, step=2), "it has taken over the work"
    swarm.assert_equal(reference(swarm))


def test_a_run_ends_although_the_only_peer_of_a_stage_saves_no_checkpoint(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """Another peer stands by. It takes a place beside that peer, fetches its state, and saves the checkpoint."""
    budget = ("timing.step_budget_s=5", "checkpoint.every=1000")
    swarm = make_swarm("int8", "swarm.max_replicas=1", "swarm.replicas=1", *budget)
    swarm.coordinate()
    swarm.join_stages(("p0", "p1"), {"p0": ("--seats=1",), "p1": ("--seats=1",)})
    folder = Home(swarm.peers["p1"].home).checkpoints
    shutil.rmtree(folder)
    folder.touch()  # where a folder should be
    swarm.join("p2", "--seats=1")
    swarm.finish()
    coordinator = swarm.coordinator
    assert swarm.peers["p1"].of(CheckpointRefused) and not coordinator.of(RolledBack)
    assert [event.stage for event in coordinator.of(PeerJoined) if event.actor == swarm.peers["p2"].actor][-1] == 1
    swarm.assert_equal(reference(swarm))
