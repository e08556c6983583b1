"""Runs of a tied model, real cores and real compute in one process: two stages hold the embedding, and never differ."""

from collections.abc import Callable, Iterator

import pytest
import torch
from core_swarm import Corpus, Hook, Swarm, killing, manifest, once, runs, stage_of

from peers.run.reference import train_reference
from swarm.compute.optimizer import KINDS, StageState
from swarm.manifest import RunManifest
from swarm.protocol import io
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Amend, ReducedPart, ReducePart
from swarm.protocol.peer import io as peer_io

WAIT_S = 30.0
TIED = "model.embed_tokens.weight"

Run = Callable[..., Swarm]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 97 × 32 shared numbers four buckets are full, and the last is not."""
    monkeypatch.setattr("swarm.compute.reduction.BUCKET_ELEMENTS", 1 << 9)


@pytest.fixture
def run() -> Iterator[Run]:
    yield from runs()


def tied(codec: str = "int8", stages: int = 2, **sections) -> RunManifest:
    return manifest(codec, stages, tied=True, **{"steps": 4} | sections)


def states(swarm: Swarm) -> list[tuple[int, StageState]]:
    engines = [(peer.core.held_stage.stage, peer.engine) for peer in swarm.peers.values()]
    return [
        (stage, e.state.snapshot().result(WAIT_S))
        for stage, e in engines
        if e is not None and e.state.version is not None
    ]


def assert_copies_equal(swarm: Swarm) -> None:
    """The embedding and both its moments, of every peer of the first and the last stage."""
    ends = [state for stage, state in states(swarm) if stage in (0, swarm.settings.stages - 1)]
    assert len(ends) >= 2
    for state in ends:
        for kind in KINDS:
            assert torch.equal(state.tensors[f"{kind}/{TIED}"], ends[0].tensors[f"{kind}/{TIED}"])


@pytest.mark.parametrize("codec", ["none", "int8", "delta:4"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_calm_run_equals_the_reference(run: Run, stages: int, codec: str) -> None:
    swarm = run(tied(codec, stages))
    assert swarm.digests() == swarm.plain()
    if stages > 1:
        assert_copies_equal(swarm)


def test_a_run_whose_peers_offload_their_state_equals_the_reference(run: Run) -> None:
    swarm = run(tied(), offload=True)
    assert swarm.digests() == swarm.plain()
    assert_copies_equal(swarm)


@pytest.mark.parametrize(
    "kind", [peer_io.Forward, peer_io.EncodePart, peer_io.SumBucket, peer_io.StoreSum, peer_io.Assemble]
)
@pytest.mark.parametrize("stage", [0, 1], ids=["first", "last"])
def test_a_peer_killed_in_a_stage_that_shares(run: Run, stage: int, kind: type) -> None:
    swarm = run(tied(steps=2), hook=killing(1, stage, kind, False, late=True))
    assert swarm.digests() == swarm.reference()
    assert_copies_equal(swarm)


@pytest.mark.parametrize("kind", [peer_io.Forward, peer_io.EncodePart])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_peer_killed_in_a_later_visit_comes_back(run: Run, stage: int, kind: type) -> None:
    swarm = run(tied("delta:4", 3, steps=5), hook=killing(3, stage, kind, True, late=True))
    assert swarm.digests() == swarm.reference()
    assert_copies_equal(swarm)


def after_half_a_reduce(stage: int) -> Hook:
    """Kills a peer of `stage` once both stages have prepared and one of its siblings has not said so yet."""
    prepared: list[Actor] = []

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if not isinstance(action, peer_io.Assemble) or action.attempt.pass_id.step != 1:
            return False
        prepared.append(actor)
        mine = [a for a in swarm.peers if stage_of(swarm, a) == stage and a not in prepared]
        if len(prepared) < 2 or not mine:
            return False
        swarm.kill(mine[0])
        return True

    return once(strike)


@pytest.mark.parametrize("stage", [0, 2])
def test_the_partner_reduces_again_when_a_table_changes(run: Run, stage: int) -> None:
    attempts: set[tuple[int, int, int]] = set()
    strike = after_half_a_reduce(stage)

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, peer_io.EncodePart) and action.attempt.pass_id.step == 1:
            attempts.add((action.attempt.stage, action.attempt.number, action.attempt.partner))
        strike(swarm, actor, action)

    swarm = run(tied(stages=3), hook=hook)
    assert {(2 - stage, 0, 0), (2 - stage, 0, 1)} <= attempts, "the other stage's table voids the attempt"
    assert {number for s, number, _ in attempts if s == 1} == {0}, "the stage between is not disturbed"
    assert swarm.digests() == swarm.reference()
    assert_copies_equal(swarm)


def test_amendments_are_told_to_the_other_end_and_nobody_else_far_away(run: Run) -> None:
    told: set[tuple[int, int | None]] = set()
    strike: Hook

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, io.Send) and isinstance(action.message, Amend):
            told.add((action.message.stage, stage_of(swarm, action.to)))
        strike(swarm, actor, action)

    for of, expected in ((tied(stages=4), {0, 1, 2, 3}), (manifest("int8", 4, steps=4), {0, 1, 2})):
        told.clear()
        strike = killing(1, 0, peer_io.Forward, False, late=True)
        run(of, hook=hook)
        assert {to for stage, to in told if stage == 0 and to is not None} == expected


def test_one_reducer_of_both_stages_sends_the_same_bytes_to_all(run: Run) -> None:
    sent: dict[tuple[int, int], set[tuple[Actor, bytes]]] = {}
    crossed = 0

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        nonlocal crossed
        if not isinstance(action, io.Send) or not isinstance(action.message, ReducePart | ReducedPart):
            return
        key, sender, receiver = action.message.key, stage_of(swarm, actor), stage_of(swarm, action.to)
        assert key.attempt.stage == receiver, "a key names the attempt as its receiver knows it"
        if sender != receiver:
            crossed += 1
            assert key.bucket < 7 and key.attempt.pass_id.index == 0
        if isinstance(action.message, ReducedPart) and key.bucket < 7:
            sent.setdefault((key.attempt.pass_id.step, key.bucket), set()).add((actor, bytes(action.message.payload)))

    swarm = run(tied(), hook=hook)
    assert next(iter(swarm.peers.values())).engine.shared_buckets == 7
    assert crossed and len(sent) == 7 * 4 and all(len(said) == 1 for said in sent.values())
    assert len({actor for said in sent.values() for actor, _ in said}) == 4, "each peer of both stages sums some"


def test_parts_that_found_no_room_are_asked_for_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage is sealed first, and sends while the first still computes."""
    calm = run(tied(steps=2))
    monkeypatch.setattr("swarm.protocol.peer.early_messages.LIMIT_BYTES", 0)
    swarm = run(tied(steps=2))
    assert swarm.digests() == calm.digests()
    assert swarm._now == calm._now, "nobody waited for a deadline"


def test_sums_as_they_come_are_the_same_in_both_stages(run: Run) -> None:
    swarm = run(tied("none", mode="fp32"))
    assert_copies_equal(swarm)
    exact = train_reference(tied("none"), Corpus(swarm.manifest)).states
    for stage, state in states(swarm):
        for name, tensor in exact[stage].tensors.items():
            if name.startswith("param/"):
                assert (state.tensors[name] - tensor).norm() <= 1e-4 * tensor.norm()


def test_the_tied_gradient_counts_once_in_the_norm() -> None:
    """Cut or whole, the model is the same function of the same numbers."""
    norms = []
    for stages in (1, 2, 3):
        of = tied("none", stages, steps=1, backward="none")
        norms.append(train_reference(of, Corpus(of)).steps[0].gradient_norm)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)


def test_a_tied_head_learns_what_two_equal_untied_ones_do_not() -> None:
    of, apart = tied("none"), manifest("none", steps=4)
    both, embedding = train_reference(of, Corpus(of)), train_reference(apart, Corpus(apart))
    assert not torch.equal(both.states[0].tensors[f"param/{TIED}"], embedding.states[0].tensors[f"param/{TIED}"])
    assert "param/lm_head.weight" not in both.states[1].tensors


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_dithered_sums_of_both_stages_are_rounded_together(run: Run, stages: int) -> None:
    """The second moments of the copies are equal, so both stages have the same grid of blocks."""
    swarm = run(tied(stages=stages, averaging="dither:1"))
    plain = train_reference(swarm.manifest, Corpus(swarm.manifest))
    assert swarm.digests() == plain.digests
    usual = tied(stages=stages)
    assert plain.digests != train_reference(usual, Corpus(usual)).digests
    if stages > 1:
        assert_copies_equal(swarm)


@pytest.mark.parametrize("kind", [peer_io.EncodePart, peer_io.SumBucket, peer_io.Assemble])
@pytest.mark.parametrize("stage", [0, 1], ids=["first", "last"])
def test_dithered_sums_of_both_stages_are_exact_whoever_dies(run: Run, stage: int, kind: type) -> None:
    swarm = run(tied(steps=4, averaging="dither:1"), hook=killing(2, stage, kind, True, late=True))
    assert swarm.digests() == swarm.plain() == swarm.reference()
    assert_copies_equal(swarm)


def test_averaging_compressed_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r'sums.averaging = "int8" compresses .* set sums.averaging = "none" or "dither:1", or mod'
    ):
        tied(averaging="int8")
    assert not tied(stages=1, averaging="int8").model.shares_embedding
