"""The benchmarks' peers that change functions of the product change those that the product calls."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import bare_peer, profiled_peer
from benchmarks.gpu.workload import ATTEMPT, MIDDLE, PASS, bodies_of, run_of
from swarm.compute import digest, reduction
from swarm.compute.engine import StageEngine
from swarm.compute.stage_options import StageOptions
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassKind
from swarm.protocol.io import Send
from swarm.protocol.messages import Decision
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.frame_cache import FrameCache, Kept
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Assemble,
    Assembled,
    Backward,
    BackwardDone,
    Begin,
    BucketSummed,
    EncodePart,
    Forward,
    ForwardDone,
    PartEncoded,
    PeerInput,
    StoreSum,
    SumBucket,
    Weights,
    WeightsDone,
)
from swarm.protocol.update import Update

WAIT_S = 60.0
RUN = run_of(32, 64, 1, 1, 16)
FORWARD, BACKWARD = bodies_of(RUN)  # before any function is changed: this calls some of them itself


def train_a_step() -> Assembled:
    """One step of a middle stage, with everything that a peer's compute thread does in it."""
    posts: queue.SimpleQueue[PeerInput] = queue.SimpleQueue()
    engine = StageEngine(RUN, MIDDLE, StageOptions(splits=True), post=posts.put)

    def ask(action: Any, kind: type[Any]) -> Any:
        engine.submit(action)
        found = posts.get(timeout=WAIT_S)
        assert isinstance(found, kind), found
        return found

    try:
        engine.state.initialise().result(WAIT_S)
        engine.submit(Begin(PASS, PassKind.TRAIN))
        ask(Forward(PASS, PassKind.TRAIN, Microbatch(0), FORWARD), ForwardDone)
        assert ask(Backward(PASS, Microbatch(0), BACKWARD), BackwardDone).weights_due
        ask(Weights(PASS, Microbatch(0)), WeightsDone)
        for bucket in range(engine.buckets):
            ask(EncodePart(ATTEMPT, bucket), PartEncoded)
            total = ask(SumBucket(ATTEMPT, bucket, ()), BucketSummed)
            engine.submit(StoreSum(ATTEMPT, bucket, bytes(total.payload)))
        done: Assembled = ask(Assemble(ATTEMPT), Assembled)
        decision = Decision(PASS.term, PASS.step, 0.1, 1.0, 24, 1.0, (), update=Update(1e-3, 0.1, 0.05))
        ask(Apply(decision, ATTEMPT), AppliedStep)
        return done
    finally:
        engine.close()


def test_a_step_calls_each_function_whose_time_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = [function for those in profiled_peer.PARTS.values() for function in those]
    called: Counter[tuple[type, str]] = Counter()

    def counting(function: tuple[type, str]) -> Callable[..., Any]:
        usual = getattr(*function)

        def run(*arguments: Any, **named: Any) -> Any:
            called[function] += 1
            return usual(*arguments, **named)

        return run

    for owner, name in functions:
        monkeypatch.setattr(owner, name, counting((owner, name)))  # restored afterwards
    profiled_peer.note_parts()
    monkeypatch.setattr(profiled_peer, "_seconds", profiled_peer.defaultdict(float))
    train_a_step()
    assert not [function for function in functions if not called[function]]
    assert set(profiled_peer._seconds) == set(profiled_peer.PARTS)
    assert not profiled_peer._open.inner


def test_a_frame_that_is_completed_later_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter((0.0, 1.0, 10.0, 14.0))  # 1 s to begin it, 4 s to complete it
    monkeypatch.setattr(profiled_peer.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(profiled_peer, "_seconds", profiled_peer.defaultdict(float))
    begin = profiled_peer._noted("codec and frames", lambda: lambda: "a frame")
    assert begin()() == "a frame"
    assert profiled_peer._seconds == {"codec and frames": 5.0}


def test_without_fault_tolerance_no_frame_is_kept_and_nothing_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameCache, "keep", FrameCache.keep)  # restored afterwards
    for module in (digest, reduction):
        monkeypatch.setattr(module, "reduced_digest", module.reduced_digest)
    usual = train_a_step()
    bare_peer.without_fault_tolerance()
    bare = train_a_step()
    assert bare.digest == "00" * 32 != usual.digest
    assert bare.squared_norm == usual.squared_norm, "the same step"

    out, key = Outbox(Actor("a", 1)), FrameKey(PASS, 1, Direction.FORWARD, Microbatch(0))
    frames, receiver = FrameCache(out), Actor("b", 1)
    frames.wanted(receiver, key, None)
    frames.keep(key, Kept(torch.zeros(1).numpy().data))
    assert [action.to for action in out.take() if isinstance(action, Send)] == [receiver], "it is sent"
    assert not frames.answer(receiver, key, None), "and forgotten"
