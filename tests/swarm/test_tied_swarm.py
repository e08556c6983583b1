"""A tied model in real processes: the two ends of the pipeline reduce the embedding together, whatever dies there."""

from collections.abc import Callable
from signal import SIGKILL

import pytest
from conftest import MakeSwarm
from swarm_processes import Swarm

from peers.home import Home
from swarm.events import PeerFenced, ReduceStarted, StageAmended, StagePrepared, StepApplied
from swarm.state.archive import Archive
from swarm.state.whole import whole_parameters

HIT = "1:2"
TIED = ("model.tie_embeddings=true", "timing.step_budget_s=600")

Reference = Callable[[Swarm], tuple[str, ...]]


def assert_exported_once(swarm: Swarm) -> None:
    """Reading it compares both copies."""
    stages = swarm.manifest.model.stages
    archive = Archive(Home(swarm.coordinator.home).archive, swarm.manifest.hash, stages, swarm.manifest.checkpoint.keep)
    parameters = whole_parameters(archive, swarm.manifest)
    assert parameters["model.embed_tokens.weight"].shape == (512, 32) and "lm_head.weight" not in parameters


def newest_table(swarm: Swarm, stage: int) -> int:
    return max((event.number for event in swarm.coordinator.of(StageAmended, pass_id=HIT, stage=stage)), default=0)


@pytest.mark.parametrize("victim", ["p0", "p1"], ids=["first", "last"])
def test_killed_in_the_reduce_of_what_both_ends_hold(make_swarm: MakeSwarm, reference: Reference, victim: str) -> None:
    swarm = make_swarm("int8", *TIED)
    stage, sibling, other = (0, "p2", "p1") if victim == "p0" else (1, "p3", "p0")
    swarm.coordinate()
    fault = f"--fault=kill@ReduceStarted,attempt={HIT}/s{stage}*"
    swarm.join_stages(("p0", "p1", "p2", "p3"), {victim: (fault,)})
    swarm.finish()
    killed = swarm.peers[victim]
    assert killed.code == -SIGKILL and killed.of(ReduceStarted)[-1].attempt.startswith(f"{HIT}/s{stage}n")
    (fence,) = swarm.coordinator.of(PeerFenced, pass_id=HIT)
    assert (fence.actor, fence.stage) == (killed.actor, stage)
    here, there = (newest_table(swarm, s) for s in (stage, 1 - stage))
    assert here > 0
    assert swarm.peers[sibling].of(StagePrepared, attempt=f"{HIT}/s{stage}n{here}+{there}")
    assert swarm.peers[other].of(StagePrepared, attempt=f"{HIT}/s{1 - stage}n{there}+{here}"), "it knows both tables"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
    assert_exported_once(swarm)


def test_ends_that_are_no_neighbours_find_each_other(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", *TIED, "model.cuts=[1,3]", "swarm.replicas=1")
    swarm.coordinate()
    swarm.join_stages(("p0", "p1", "p2"))
    swarm.finish()
    assert all(swarm.peers[name].of(StepApplied, step=4) for name in ("p0", "p1", "p2"))
    swarm.assert_equal(reference(swarm))
    assert_exported_once(swarm)
