"""Runs in which something overflows on its way over a boundary: real cores, real compute, equal to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from core_swarm import Corpus, Swarm, manifest, once, runs, stage_of
from torch import Tensor

from swarm.data import visits
from swarm.events import Evaluated, PeerFenced, RunPaused, StepAborted
from swarm.models.llama import LlamaStage
from swarm.protocol import io
from swarm.protocol.messages import Halt
from swarm.protocol.peer import io as peer_io

STEPS = 6
AT = 2
"""A step that overflows, in one of its microbatches."""


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


class _Growing(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def overflow(monkeypatch: pytest.MonkeyPatch, sample: Tensor, direction: str) -> None:
    """From now on what crosses the boundary beside this microbatch overflows, whoever computes it."""
    forward = LlamaStage.forward

    def overflowing(self: LlamaStage, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        ids = x if self.first else tokens
        assert ids is not None
        struck = torch.equal(ids[:, : sample.shape[1]], sample)
        if struck and direction == "backward" and not self.first:
            x = _Growing.apply(x, math.inf)
        out = forward(self, x, tokens)
        return out * math.inf if struck and direction == "forward" and self.first else out

    monkeypatch.setattr(LlamaStage, "forward", overflowing)


def sample_of(of, step: int, m: int) -> Tensor:
    return torch.from_numpy(Corpus(of).microbatch(step, m))[:, :-1]


def skips(swarm: Swarm) -> list[bool]:
    return [swarm.decisions[step].skip for step in sorted(swarm.decisions)]


CODECS = ("none", "int8", "delta:4", "ef:topk:0.1")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("codec", "replicas"),
    [
        *((codec, 2) for codec in CODECS),
        ("none", 1),
        *(pytest.param(codec, 1, marks=pytest.mark.long) for codec in CODECS[1:]),
    ],
)
def test_a_step_that_overflows_at_a_boundary_is_skipped_by_all_and_by_the_reference(
    run, monkeypatch: pytest.MonkeyPatch, codec: str, direction: str, replicas: int
) -> None:
    of = manifest(codec, 3, STEPS, replicas=replicas)
    overflow(monkeypatch, sample_of(of, AT, 1), direction)
    swarm = run(of)
    struck = [torch.equal(sample_of(of, step, 1), sample_of(of, AT, 1)) for step in range(STEPS)]
    assert skips(swarm) == struck and True in struck and False in struck
    assert not [event for event in swarm.events if isinstance(event, RunPaused)]
    aborted = len([event for event in swarm.events if isinstance(event, StepAborted)])
    assert sum(struck) <= aborted <= replicas * sum(struck), "one attempt more, two where others could have sent it"
    assert swarm.digests() == swarm.reference() == swarm.plain()


def test_the_visit_after_a_skipped_one_begins_with_key_frames(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is the change of what was not finite."""
    of = manifest("delta:4", 2, STEPS, replicas=1)
    forward, microbatch = LlamaStage.forward, Corpus.microbatch
    sample = sample_of(of, AT, 1)
    asked: list[int] = []
    struck: list[int] = []

    def noted(self: Corpus, step: int, m: int) -> object:
        asked.append(step)
        return microbatch(self, step, m)

    def overflowing(self: LlamaStage, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        out = forward(self, x, tokens)
        if asked[-1] == AT and self.first and torch.equal(x, sample):
            struck.append(AT)
            return out * math.inf
        return out

    monkeypatch.setattr(Corpus, "microbatch", noted)
    monkeypatch.setattr(LlamaStage, "forward", overflowing)
    swarm = run(of)
    assert struck == [AT, AT], "what skips the step is another attempt"
    assert skips(swarm) == [False, False, True, False, False, False]
    order = visits(of)
    assert order is not None and order.next(AT) < STEPS
    expected = [15 if order.previous(step) in (None, AT) else 0 for step in range(STEPS)]
    assert swarm.key_frames() == [(bits,) for bits in expected]
    assert swarm.digests() == swarm.reference() == swarm.plain()


def test_a_broken_replica_is_fenced_and_nothing_is_skipped(run) -> None:
    """What its sibling finds finite is finite."""

    def strike(swarm: Swarm, actor, action) -> bool:
        if not isinstance(action, peer_io.Forward) or action.pass_id.step != AT or stage_of(swarm, actor) != 0:
            return False
        engine = swarm.peers[actor].engine
        assert engine is not None and engine.state.stage is not None
        compute = engine.state.stage.forward

        def broken(order: peer_io.Forward) -> object:
            engine.state.stage.forward = compute  # type: ignore[union-attr, method-assign]
            raise_for = torch.full((2, 12, 32), torch.nan)
            return engine.state.stage._sent(order, engine.state.stage._unpacked(order), raise_for)  # type: ignore[union-attr]

        engine.state.stage.forward = broken  # type: ignore[method-assign, assignment]
        return True

    swarm = run(manifest("int8", 2, STEPS), hook=once(strike))
    assert not any(skips(swarm))
    (fenced,) = [event for event in swarm.events if isinstance(event, PeerFenced)]
    assert "NaN or infinite" in fenced.reason
    assert swarm.digests() == swarm.reference()


def test_an_overflow_of_sums_makes_a_run_of_single_replicas_wait_and_say_why(run, monkeypatch) -> None:
    """It is finite, so it is no reason to skip; and whoever adds it up finds the same. Nobody is sent home for it."""
    of = manifest("none", 2, STEPS, replicas=1)
    forward, sample = LlamaStage.forward, sample_of(of, AT, 1)
    grows = [True]

    def growing(self: LlamaStage, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        out = forward(self, x, tokens)
        return _Growing.apply(out, 1e25) if grows and self.first and torch.equal(x, sample) else out

    halts: list[str] = []

    def hook(swarm: Swarm, actor, action) -> None:
        if isinstance(action, io.Send) and isinstance(action.message, Halt):
            halts.append(action.message.reason)
        if isinstance(action, io.Emit) and isinstance(action.event, RunPaused) and "10 times" in action.event.reason:
            grows.clear()  # as if another machine had come

    monkeypatch.setattr(LlamaStage, "forward", growing)
    swarm = run(of, hook=hook)
    assert sorted(swarm.decisions) == list(range(STEPS)) and not halts and not any(skips(swarm))
    reasons = [event.reason for event in swarm.events if isinstance(event, RunPaused)]
    first = next(step for step in range(STEPS) if torch.equal(sample_of(of, step, 1), sample))
    assert f"step {first} has failed 10 times with the present peers. It is not skipped" in reasons[-1]
    assert "sums.grid_bits" in reasons[-1] and "of stage 0 failed on microbatch 1, which" in reasons[-1]


def test_an_evaluation_whose_activations_overflow_is_given_up(run, monkeypatch: pytest.MonkeyPatch) -> None:
    of = manifest("int8", 2, 2, evaluate=1, replicas=1)
    overflow(monkeypatch, torch.from_numpy(Corpus(of).heldout(0))[:, :-1], "forward")
    swarm = run(of)
    assert sorted(swarm.decisions) == [0, 1] and not [e for e in swarm.events if isinstance(e, Evaluated)]
