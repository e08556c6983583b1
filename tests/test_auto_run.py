"""Runs that leave their codecs to be chosen, real cores and real compute in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from core_swarm import COORDINATOR, Corpus, Hook, Swarm, killing, killing_stage_one, manifest, once, runs

from peers.run.reference import ReferenceModel, train_reference
from peers.run.replay import StepReplay
from swarm.codecs import UnknownCodec
from swarm.compute.body import BodyFormat, BodyKind, FrameError
from swarm.compute.engine import StageEngine
from swarm.compute.ladders import ladders
from swarm.compute.payload import largest_payload
from swarm.events import CodecChosen, StepAborted
from swarm.manifest import RunManifest
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import CodecPair
from swarm.protocol.peer import io as peer_io

FAST, SLOW = 1e9, 15_000.0
"""Bytes a second. A frame has 0.8 kB in int8 and 0.5 in int4; a microbatch takes 10 ms forward and 10 backward."""
START, HARDEST, GENTLEST = CodecPair("int8", "int8"), CodecPair("int4", "log4"), CodecPair("none", "none")


def auto(stages: int = 2, steps: int = 6, **keys) -> RunManifest:
    return manifest("auto", stages, steps, backward="auto", **keys)


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def uplinks(rate: Callable[[int], float], also: Hook = lambda swarm, actor, action: None) -> Hook:
    """Every peer says, when a step opens, that it sends `rate(step)` bytes a second."""

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, peer_io.Begin) and action.kind is PassKind.TRAIN:
            swarm.tell(actor, peer_io.LinksMeasured(rate(action.pass_id.step)))
        also(swarm, actor, action)

    return hook


def chosen(swarm: Swarm) -> list[tuple[CodecPair, ...]]:
    """By step, as decided."""
    return [swarm.decisions[step].codecs for step in sorted(swarm.decisions)]


def test_slow_links_get_harder_codecs_and_the_answer_is_the_references(run) -> None:
    swarm = run(auto(3), hook=uplinks(lambda step: SLOW))
    found = chosen(swarm)
    assert found[0] == (START, START), "nothing is measured yet"
    assert found[-1] == (HARDEST, HARDEST)
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() != swarm.plain(), "which knows nothing of what was chosen"
    told = [event for event in swarm.events if isinstance(event, CodecChosen)]
    assert [(e.step, e.boundary, e.direction, e.codec, e.before) for e in told[:2]] == [
        (0, 1, "forward", "int8", ""),
        (0, 1, "backward", "int8", ""),
    ]
    assert any("carries 0.015 MB/s" in event.reason for event in told)
    sizes = {step: max(len(f.payload) for f in swarm.frames if f.key.pass_id.step == step) for step in (0, 5)}
    assert sizes[5] < sizes[0]


def test_fast_links_get_gentler_codecs_after_a_while(run) -> None:
    swarm = run(auto(steps=8), hook=uplinks(lambda step: FAST))
    assert chosen(swarm) == [(START,)] * 5 + [(CodecPair("bf16", "bf16"),)] * 3
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("kind", [peer_io.Forward, peer_io.EncodePart])
def test_a_peer_dies_in_a_step_with_another_codec_than_the_one_before(run, stage: int, kind: type) -> None:
    swarm = run(auto(), hook=uplinks(lambda step: SLOW, killing(1, stage, kind)))
    found = chosen(swarm)
    assert found[0] == (START,) and HARDEST in found[1] + found[2]
    assert swarm.digests() == swarm.reference()


def test_a_step_that_is_given_up_may_be_done_again_with_another_codec(run) -> None:
    """All replicas of a stage die before anybody could apply the step; the links are slow from then on."""

    swarm = run(
        auto(every=1), hook=uplinks(lambda step: SLOW if step >= 2 else 3e5, killing_stage_one(2, 0, peer_io.Assemble))
    )
    assert any(isinstance(event, StepAborted) for event in swarm.events)
    assert swarm.digests() == swarm.reference()


def test_a_coordinator_that_restarts_goes_on_with_the_last_choice(run) -> None:
    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if actor == COORDINATOR and isinstance(action, coordinator_io.Feed) and action.key.pass_id.step == 3:
            swarm.restart_coordinator()
            return True
        return False

    swarm = run(auto(), hook=uplinks(lambda step: SLOW, once(strike)))
    found = chosen(swarm)
    assert found[2:] == [(HARDEST,)] * 4
    told = [event for event in swarm.events if isinstance(event, CodecChosen)]
    assert [e.codec for e in told if e.step == 3] == ["int4", "log4"]
    assert all(e.reason == "continues with the codecs of step 3" for e in told if e.step == 3)
    assert swarm.digests() == swarm.reference()


def test_an_evaluation_crosses_with_the_codecs_of_the_step_before_it(run) -> None:
    swarm = run(auto(evaluate=2), hook=uplinks(lambda step: SLOW))
    model, losses = ReferenceModel(swarm.manifest), []
    for step in range(6):
        model.train(step, Corpus(swarm.manifest), StepReplay.of(swarm.decisions[step]))
        if step % 2:
            losses.append(model.heldout_loss(Corpus(swarm.manifest)))
    assert swarm.losses == losses and chosen(swarm)[1] != chosen(swarm)[0]


@pytest.mark.parametrize("keys", [{"backward": "auto"}, {"codec": "auto"}, {"codec": "delta:4", "backward": "auto"}])
def test_one_direction_may_be_chosen_and_the_other_named(run, keys: dict[str, str]) -> None:
    swarm = run(manifest(**{"codec": "bf16", **keys}), hook=uplinks(lambda step: SLOW))
    (last,) = chosen(swarm)[-1]
    assert last.forward == ("int4" if keys.get("codec") == "auto" else keys.get("codec", "bf16"))
    assert last.backward == ("log4" if "backward" in keys else "int8")
    assert swarm.digests() == swarm.reference()


# ---------------------------------------------------------------- frames


TOKENS = torch.zeros(2, 13, dtype=torch.int64)
HIDDEN = torch.linspace(-1, 1, 2 * 12 * 32).view(2, 12, 32)


def test_a_frame_that_is_coded_otherwise_than_its_pass_is_refused() -> None:
    form = BodyFormat(auto(3))
    passes = {pair: form.of_pass((pair, START)) for pair in (START, HARDEST, GENTLEST)}
    for pair, ours in passes.items():
        forward, backward = ours.pack_forward(1, BodyKind.BATCH, TOKENS, HIDDEN), ours.pack_backward(1, HIDDEN)
        for other, theirs in passes.items():
            for direction, body in ((Direction.FORWARD, forward), (Direction.BACKWARD, backward)):
                if other == pair:
                    theirs.check(1, direction, body, PassKind.TRAIN)
                    continue
                name = other.forward if direction is Direction.FORWARD else other.backward
                with pytest.raises(FrameError, match=f"codec {name}: wrong codec"):
                    theirs.check(1, direction, body, PassKind.TRAIN)
            theirs.check(2, Direction.BACKWARD, ours.pack_backward(2, HIDDEN), PassKind.TRAIN)


def test_without_a_choice_there_are_only_tokens() -> None:
    form = BodyFormat(auto())
    body = form.pack_tokens(PassKind.TRAIN, np.zeros((2, 13), dtype=np.int64))
    form.check(0, Direction.FORWARD, body, PassKind.TRAIN)
    with pytest.raises(FrameError, match="no codec is chosen for boundary 1; 0 boundaries have one"):
        form.check(1, Direction.BACKWARD, form.of_pass((START,)).pack_backward(1, HIDDEN), None)


def test_no_choice_makes_a_larger_frame_than_a_stranger_may_send() -> None:
    of = auto()
    form, most = BodyFormat(of), largest_payload(of)
    for rungs in (ladders(of).forward, ladders(of).backward):
        assert [rung.nbytes for rung in rungs] == sorted((rung.nbytes for rung in rungs), reverse=True)
    for pair in (START, HARDEST, GENTLEST):
        body = form.of_pass((pair,)).pack_forward(1, BodyKind.BATCH, TOKENS, HIDDEN)
        rung = ladders(of).forward[ladders(of).place(Direction.FORWARD, pair.forward)]
        assert len(body) == rung.nbytes <= form.max_bytes(1, Direction.FORWARD) <= most
        back = form.of_pass((pair,)).pack_backward(1, HIDDEN)
        rung = ladders(of).backward[ladders(of).place(Direction.BACKWARD, pair.backward)]
        assert len(back) == rung.nbytes <= form.max_bytes(1, Direction.BACKWARD)
    assert form.max_bytes(1, Direction.FORWARD) == BodyFormat(manifest("none")).max_bytes(1, Direction.FORWARD)


@pytest.mark.parametrize(
    ("codecs", "text"),
    [
        ((CodecPair("int2", "int8"),), "the codecs 'int2' forward and 'int8' backward cannot be chosen"),
        ((CodecPair("int8", "topk-shared"),), "backward cannot be chosen"),
        ((CodecPair("delta:4", "int8"),), "need the same release"),
        ((START, START), "for 2 boundaries; the run has 1, with codec.forward = 'auto'"),
    ],
)
def test_a_choice_that_this_run_does_not_have_is_refused(codecs: tuple[CodecPair, ...], text: str) -> None:
    with pytest.raises(UnknownCodec, match=text):
        BodyFormat(auto()).of_pass(codecs)


def test_a_run_that_names_its_codecs_takes_no_others() -> None:
    with pytest.raises(UnknownCodec, match=r"chosen for 1 boundaries; the run has 1, with codec.forward = 'none'"):
        BodyFormat(manifest("none")).of_pass((START,))


def test_a_peer_that_cannot_use_a_choice_leaves_the_pass_and_says_why() -> None:
    posted: list[peer_io.PeerInput] = []
    engine = StageEngine(auto(), 0, post=posted.append)
    try:
        engine.state.initialise().result(30)
        pass_id = PassId(Term(1), StepNumber(0))
        engine.submit(peer_io.Begin(pass_id, PassKind.TRAIN, (CodecPair("int1", "int8"),)))
        (failed,) = posted
        assert isinstance(failed, peer_io.ComputeFailed) and failed.microbatch is None and "'int1'" in failed.reason
        engine.submit(peer_io.Forward(pass_id, PassKind.TRAIN, Microbatch(0), b""))
        engine.state.snapshot().result(30)
        assert posted == [failed], "nothing of that pass is computed"
    finally:
        engine.close()


def test_frames_are_judged_by_the_codecs_of_the_pass_that_is_open() -> None:
    engine = StageEngine(auto(), 0, post=lambda event: None)
    try:
        passes = [PassId(Term(1), StepNumber(step)) for step in (0, 1)]
        frames = [BodyFormat(auto()).of_pass((pair,)).pack_backward(1, HIDDEN) for pair in (START, HARDEST)]
        keys = [FrameKey(pass_id, 1, Direction.BACKWARD, Microbatch(0)) for pass_id in passes]
        engine.submit(peer_io.Begin(passes[0], PassKind.TRAIN, (START,)))
        engine.check_frame(keys[0], frames[0])
        with pytest.raises(FrameError, match="wrong codec"):
            engine.check_frame(keys[0], frames[1])
        engine.submit(peer_io.Begin(passes[1], PassKind.TRAIN, (HARDEST,)))
        engine.check_frame(keys[1], frames[1])
        with pytest.raises(FrameError, match="wrong codec"):
            engine.check_frame(keys[1], frames[0])
        engine.check_frame(keys[0], frames[0])  # late: nobody's fault, and the core drops it
    finally:
        engine.close()


def test_narrow_boundaries_have_codecs_with_a_scale_a_channel() -> None:
    of = auto()
    model = of.model.model_copy(update={"boundary": "bottleneck", "boundary_dim": 4})
    narrow = ladders(of.model_copy(update={"model": model}))
    assert narrow is not None and narrow.start == CodecPair("int8-channel", "int8-channel")
    assert narrow.forward[-1].codec == "int5-channel" and narrow.backward[-1].codec == "log4-channel"
    assert ladders(manifest("int8")) is None


def test_the_reference_without_a_record_stays_with_the_start() -> None:
    of = auto(steps=2)
    same = manifest("int8", steps=2)
    assert train_reference(of, Corpus(of)).steps[-1].loss == train_reference(same, Corpus(same)).steps[-1].loss
