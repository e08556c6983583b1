"""Runs with codec `delta`, real cores and real compute in one process: whatever dies, the answer is the reference's."""

from collections.abc import Callable, Iterator

import pytest
from core_swarm import BLOCKS, Corpus, Swarm, killing, killing_stage_one, manifest, once, runs, stage_of

from peers.run.reference import ReplayError, train_reference
from peers.run.replay import StepReplay
from swarm.data import visits
from swarm.events import MicrobatchAccumulated, StepAborted
from swarm.manifest import RunManifest
from swarm.protocol import io
from swarm.protocol.ids import Actor
from swarm.protocol.peer import io as peer_io


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


EVERYTHING = 0b1111


@pytest.mark.parametrize("codec", ["delta:4", "delta:2", "delta:8"])
@pytest.mark.parametrize("stages", [2, 3])
def test_only_first_visits_cross_whole(run, codec: str, stages: int) -> None:
    swarm = run(manifest(codec, stages))
    cuts = stages - 1
    assert swarm.key_frames() == [(EVERYTHING,) * cuts] * BLOCKS + [(0,) * cuts] * 4
    assert all((frame.lineage.base == 0) == (frame.key.pass_id.step < BLOCKS) for frame in swarm.frames)
    whole, changed = (
        max(len(frame.payload) for frame in swarm.frames if (frame.lineage.base != 0) is is_change)
        for is_change in (False, True)
    )
    bits = int(codec.partition(":")[2])
    assert changed < (bits + 1) / 16 * whole + 200
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() == swarm.plain(), "nobody has forgotten"


def test_without_memory_for_graphs_the_forward_is_computed_from_the_same_base(run) -> None:
    swarm = run(manifest(stages=3), graph_budget_bytes=0)
    assert swarm.digests() == swarm.reference()
    assert sum(map(sum, swarm.key_frames()[BLOCKS:])) == 0


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("back", [False, True], ids=["stays away", "comes back"])
@pytest.mark.parametrize("kind", [peer_io.Forward, peer_io.EncodePart], ids=["in forward", "in reduce"])
def test_a_sender_killed_in_a_later_visit(run, kind: type, back: bool, stage: int) -> None:
    swarm = run(manifest(stages=3), hook=killing(3, stage, kind, back, late=True))
    frames = swarm.key_frames()
    assert any(step[stage] for step in frames[3:]), "what died with the peer crosses whole again"
    assert any(bits != EVERYTHING for step in frames[3:] for bits in step)
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() != swarm.plain(), "the record is needed"


@pytest.mark.parametrize("back", [False, True], ids=["stays away", "comes back"])
@pytest.mark.parametrize("kind", [peer_io.Forward, peer_io.EncodePart], ids=["in forward", "in reduce"])
def test_a_receiver_killed_in_a_later_visit_costs_whole_frames_and_changes_nothing(run, kind: type, back: bool) -> None:
    swarm = run(manifest(stages=2), hook=killing(3, 1, kind, back, late=True))
    assert swarm.key_frames() == [(EVERYTHING,)] * BLOCKS + [(0,)] * 4
    assert any(not frame.lineage.base and not frame.lineage.fresh for frame in swarm.frames)
    assert swarm.digests() == swarm.plain() == swarm.reference()


def test_a_step_that_mixed_two_copies_is_done_again(run) -> None:
    """A sender goes when its change is used; another makes a key frame of it and takes the gradient of the change; then
    the receiver of the change goes, and a third computes with the key frame."""
    gone: list[Actor] = []

    def goes(swarm: Swarm, actor: Actor) -> None:
        gone.append(actor)
        swarm.kill(actor, shutdown=True)

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if stage_of(swarm, actor) != 0 or len(gone) > 1:
            return
        if not gone and isinstance(action, peer_io.EncodePart) and action.attempt.pass_id.step == 3:
            goes(swarm, actor)
        elif gone and isinstance(action, io.Emit) and isinstance(action.event, MicrobatchAccumulated):
            goes(swarm, swarm.tables[1].assignee(action.event.microbatch))

    swarm = run(manifest(stages=2), hook=hook)
    assert len(gone) == 2
    (aborted,) = [event for event in swarm.events if isinstance(event, StepAborted)]
    assert (aborted.pass_id, aborted.reason) == (
        "1:3",
        "the stages beside boundary 1 computed with different copies of a frame",
    )
    assert swarm.digests() == swarm.reference()


def test_a_small_cache_costs_bytes_only(run) -> None:
    swarm = run(manifest(stages=3), capacity=3)
    frames = swarm.key_frames()
    assert any(0 < bits < EVERYTHING for step in frames[BLOCKS:] for bits in step), "some are kept, some are not"
    assert swarm.digests() == swarm.reference()
    for peer in swarm.peers.values():
        assert len(peer.core._bases) <= 3 and peer.engine is not None and peer.engine.state.stage is not None
        assert len(peer.engine.state.stage.bases) == len(peer.core._bases)


def test_a_rollback_begins_with_key_frames(run) -> None:
    """Both replicas of a stage die: all go back to the archive, where no bases are."""

    swarm = run(manifest(stages=2, steps=8, every=4), hook=killing_stage_one(5, 1, peer_io.Forward))
    frames = [step[0] for step in swarm.key_frames()]
    assert frames == [EVERYTHING] * 2 + [0, 0] + [EVERYTHING] * 2 + [0, 0]
    assert swarm.digests() == swarm.reference()


def test_evaluation_crosses_whole_and_leaves_nothing(run) -> None:
    swarm = run(manifest(stages=2, evaluate=2))
    assert swarm.key_frames() == [(EVERYTHING,)] * BLOCKS + [(0,)] * 4
    assert swarm.digests() == swarm.reference()
    from peers.run.reference import ReferenceModel

    model, losses = ReferenceModel(swarm.manifest), []
    for step in range(6):
        model.train(step, Corpus(swarm.manifest))
        if step % 2:
            losses.append(model.heldout_loss(Corpus(swarm.manifest)))
    assert swarm.losses == losses


def test_the_reference_says_when_it_cannot_replay() -> None:
    of = manifest(steps=4)
    half = train_reference(of, Corpus(of), stop_after=2)
    with pytest.raises(
        ReplayError, match=r"microbatch 0 of step 2 at boundary 1 is relative to step .* train from version 0"
    ):
        train_reference(of, Corpus(of), state=half.states, replay={2: StepReplay((0,))})


def test_aborted_steps_leave_no_base(run) -> None:
    """The step is given up after every peer has computed all of it: its reconstructions are nobody's base."""

    swarm = run(manifest(stages=2, steps=6, every=1), hook=killing_stage_one(2, 0, peer_io.Assemble))
    assert any(isinstance(event, StepAborted) for event in swarm.events)
    assert swarm.digests() == swarm.reference()


def test_orders_of_steps_are_needed() -> None:
    with pytest.raises(ValueError, match=r'codec.forward = "delta:4" .* set batch.order = "steps"'):
        RunManifest.model_validate(
            {**manifest().model_dump(), "batch": {**manifest().batch.model_dump(), "order": "samples"}}
        )
    with pytest.raises(ValueError, match=r"the training split has 16 samples, one step takes 80"):
        RunManifest.model_validate(
            {**manifest().model_dump(), "batch": {**manifest().batch.model_dump(), "microbatches": 40}}
        )


@pytest.mark.parametrize(
    "codec",
    [
        "ef21:4",
        "ef21:topk:0.2",
        "ef21:log4",
        "delta:topk:0.2",
        "delta:huffman:int4-channel",
        "ef:int4",
        "ef:topk:0.2",
        "ef-mixed:topk:0.2",
        "ef-mixed:int4",
    ],
)
def test_changes_of_other_kinds(run, codec: str) -> None:
    swarm = run(manifest(codec))
    first = 1 if codec.startswith("ef") else BLOCKS
    assert swarm.key_frames() == [(EVERYTHING,)] * first + [(0,)] * (6 - first)
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize("codec", ["ef21:4", "ef:topk:0.2"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_peer_killed_where_each_step_builds_on_the_one_before(run, stage: int, codec: str) -> None:
    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if (
            isinstance(action, peer_io.Backward | peer_io.Forward)
            and action.pass_id.step == 3
            and stage_of(swarm, actor) == stage
        ):
            swarm.kill(actor, back=True)
            return True
        return False

    swarm = run(manifest(codec, steps=7), hook=once(strike))
    assert swarm.digests() == swarm.reference()
    assert any(frames == (0,) for frames in swarm.key_frames()[4:]), "changes cross again"


def test_changes_since_the_step_before_need_no_order_of_steps() -> None:
    batch = {**manifest().batch.model_dump(), "order": "samples"}
    plain = RunManifest.model_validate({**manifest("ef21:4").model_dump(), "batch": batch})
    assert visits(plain) is not None and visits(plain).previous(5) == 4
