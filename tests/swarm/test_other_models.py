"""Other models than the plain one: a peer is killed and starts again; the answer is still that of the reference."""

from collections.abc import Callable

import pytest
import torch
from conftest import MakeSwarm
from swarm_processes import Swarm

from peers.run.home import Home
from swarm.events import MicrobatchAccumulated, PeerFenced, ProcessStarted, StateFetched, StepApplied
from swarm.state.archive import Archive
from swarm.state.whole import whole_parameters

HIT = "1:2"
STEPS, PACE = 14, "--pace=0.03,0.06"
"""Few steps, each a third of a second at least: so there are some left when p1 comes back."""

Reference = Callable[[Swarm], tuple[str, ...]]


def survive_a_kill(make_swarm: MakeSwarm, reference: Reference, *sets: str) -> tuple[Swarm, Archive]:
    """A whole run with int8 in which p1 of stage 1 is killed and comes back. Its archive is of the right subspace."""
    swarm = make_swarm("int8", *sets, f"run.steps={STEPS}", "timing.step_budget_s=600")
    swarm.coordinate()
    killed = f"--fault=kill@MicrobatchAccumulated:1,pass_id={HIT}"
    options = {"p0": (PACE,), "p1": (PACE, killed), "p2": (PACE,), "p3": (PACE, "--fault=stop@StepApplied,step=4")}
    swarm.join_stages(tuple(options), options)
    swarm.rejoin("p1", sibling="p3")
    p1 = swarm.peers["p1"]
    swarm.finish()
    (fence,) = swarm.coordinator.of(PeerFenced, pass_id=HIT)
    assert (fence.actor, fence.stage) == (p1.of(ProcessStarted)[0].actor, 1)
    redone = {event.microbatch for event in swarm.peers["p3"].of(MicrobatchAccumulated, pass_id=HIT)}
    assert redone == set(range(swarm.manifest.batch.microbatches))
    assert {event.stage for event in p1.of(StateFetched)} == {1}, "the state of its sibling, in the same subspace"
    assert p1.of(StepApplied, step=STEPS - 1)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
    archive = Archive(Home(swarm.coordinator.home).archive, swarm.manifest.hash, 2, swarm.manifest.checkpoint.keep)
    assert archive.open_shard(1, STEPS).meta.subspace_id == swarm.manifest.subspace_id
    return swarm, archive


@pytest.mark.long  # test_faults.py kills peers of such a run, too
def test_a_killed_peer_changes_nothing_of_a_subspace_run(make_swarm: MakeSwarm, reference: Reference) -> None:
    sets = ("model.residual=subspace", "model.subspace_dim=4", "model.subspace_seed=9", "model.tail_layers=1")
    swarm, archive = survive_a_kill(make_swarm, reference, *sets)
    assert whole_parameters(archive, swarm.manifest)["model.embed_tokens.weight"].shape == (512, 4)


def test_a_killed_peer_changes_nothing_of_a_run_with_projectors(make_swarm: MakeSwarm, reference: Reference) -> None:
    narrow = ("model.boundary=projector", "model.boundary_dim=4", "model.token_table_dim=3", "model.receiver_hidden=16")
    swarm, archive = survive_a_kill(make_swarm, reference, *narrow)
    parameters = whole_parameters(archive, swarm.manifest)
    for part in ("tables.2.embed", "refinements.2.out"):
        assert parameters[f"model.boundaries.{part}"].any(), part
    sender, receiver = (parameters[f"model.boundaries.{side}.2.projector"] for side in ("senders", "receivers"))
    assert (sender.shape, receiver.shape) == ((4, 32), (32, 4))
    for tall in (sender.mT, receiver):
        assert (tall.mT @ tall).diag().sub(1).abs().max() < 1e-5


def test_a_killed_peer_changes_nothing_of_a_run_with_token_means(make_swarm: MakeSwarm, reference: Reference) -> None:
    subspace = ("model.residual=subspace", "model.subspace_dim=4", "model.subspace_growth=3", "model.tail_layers=1")
    narrow = (*subspace, "model.token_means=true")
    coded = ("codec.forward=entropy:1.4", "codec.backward=entropy-dithered:1")
    swarm, archive = survive_a_kill(make_swarm, reference, *narrow, *coded)
    parameters = whole_parameters(archive, swarm.manifest)
    sent, received = (parameters[f"model.boundaries.{side}_means.2.token_means"] for side in ("sent", "received"))
    assert torch.equal(sent, received) and sent[:, :-1].any()


def test_a_killed_peer_changes_nothing_of_a_classifier_of_images(make_swarm: MakeSwarm, reference: Reference) -> None:
    plain = ("model.heads=6", "model.kv_heads=2", "model.ffn_dim=512", "data.directory=../images")
    images = ("model.kind=resnet", "model.vocab_size=17", "model.classes=10", "model.context=64")
    swarm, archive = survive_a_kill(make_swarm, reference, *plain, *images, "batch.sequence_length=64")
    assert whole_parameters(archive, swarm.manifest)["head.weight"].shape == (10, 32)
