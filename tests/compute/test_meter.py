"""The meter tells what the compute thread did, in order, and neither side waits for the other."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import numpy as np
import pytest

from swarm.compute.body import BodyFormat
from swarm.compute.engine import StageEngine
from swarm.compute.meter import APPLYING, BACKWARD, FORWARD, MOST_KEPT, REDUCING, Meter, Stretch
from swarm.compute.turns import Turns
from swarm.manifest import RunManifest
from swarm.protocol.ids import Attempt, Microbatch, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.messages import Decision
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Assemble,
    Assembled,
    BackwardDone,
    Begin,
    BucketSummed,
    Forward,
    StoreSum,
    SumBucket,
)

STEP = PassId(Term(0), StepNumber(0))
TOKENS = np.arange(14).reshape(2, 7)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stretches_are_told_once_in_order_and_what_is_being_done_apart() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin(FORWARD, 3)
    clock.now = 2.0
    assert meter.read() == [] and meter.current() == Stretch(FORWARD, 3, 0.0, 2.0)
    clock.now = 5.0
    meter.end(waited_s=1.0)
    meter.begin(REDUCING)
    clock.now = 6.0
    meter.end()
    assert meter.current() is None
    assert meter.read() == [Stretch(FORWARD, 3, 1.0, 5.0), Stretch(REDUCING, -1, 5.0, 6.0)]
    assert meter.read() == []


def test_a_forward_that_goes_on_as_a_backward_is_two_stretches() -> None:
    clock = Clock()
    meter = Meter(clock)
    for turned_at in (0.5, 7.0, 4.0):  # of an earlier microbatch, of none, within
        clock.now = 1.0
        meter.begin(FORWARD, 1)
        clock.now = 6.0
        meter.end(turned_at=turned_at)
    whole = Stretch(FORWARD, 1, 1.0, 6.0)
    assert meter.read() == [whole, whole, Stretch(FORWARD, 1, 1.0, 4.0), Stretch(BACKWARD, 1, 4.0, 6.0)]


def test_what_nobody_reads_does_not_pile_up() -> None:
    meter = Meter(Clock())
    for _ in range(MOST_KEPT + 10):
        meter.begin(FORWARD)
        meter.end()
    assert len(meter.read()) == MOST_KEPT


def test_the_engine_meters_its_work_by_kind(make_manifest: Callable[..., RunManifest]) -> None:
    manifest = make_manifest(cuts=())
    posts: queue.SimpleQueue[object] = queue.SimpleQueue()
    engine = StageEngine(manifest, 0, post=posts.put, turns=Turns(1))
    began = engine.meter.clock()
    engine.state.initialise().result(20)
    engine.submit(Begin(STEP, PassKind.TRAIN))
    form = BodyFormat(manifest)
    for m in (Microbatch(0), Microbatch(1)):
        engine.submit(Forward(STEP, PassKind.TRAIN, m, form.pack_tokens(PassKind.TRAIN, TOKENS)))
        assert isinstance(posts.get(timeout=20), BackwardDone)
    attempt = Attempt(STEP, StageIndex(0), 0)
    for bucket in range(engine.buckets):
        engine.submit(SumBucket(attempt, bucket, ()))
        done = posts.get(timeout=20)
        assert isinstance(done, BucketSummed)
        engine.submit(StoreSum(attempt, bucket, bytes(done.payload)))  # type: ignore[call-overload]
    engine.submit(Assemble(attempt))
    assert isinstance(posts.get(timeout=20), Assembled)
    engine.submit(Apply(Decision(Term(0), StepNumber(0), 0.1, 1.0, 24, 1.0, ()), attempt))
    assert isinstance(posts.get(timeout=20), AppliedStep)
    engine._thread.call(lambda: None).result(20)
    stretches = engine.meter.read()
    engine.close()
    kinds = [stretch.kind for stretch in stretches]
    numbers = [stretch.microbatch for stretch in stretches if stretch.kind in (FORWARD, BACKWARD)]
    assert [kind for kind in kinds if kind in (FORWARD, BACKWARD)] == [FORWARD, BACKWARD] * 2
    assert numbers == [0, 0, 1, 1], "the last stage goes back at once"
    assert kinds.count(REDUCING) == 2 * engine.buckets + 1 and kinds.count(APPLYING) >= 3
    assert kinds.index(FORWARD) < kinds.index(REDUCING) < len(kinds) - 1 - kinds[::-1].index(APPLYING)
    ends = [began, *(stretch.end for stretch in stretches)]
    assert all(end <= stretch.start < stretch.end for end, stretch in zip(ends, stretches, strict=False))


def test_the_wait_for_a_turn_is_no_work(
    make_manifest: Callable[..., RunManifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest(cuts=())
    posts: queue.SimpleQueue[object] = queue.SimpleQueue()
    turns = Turns(1)
    monkeypatch.setattr(turns, "_wait", lambda: time.sleep(0.3))
    engine = StageEngine(manifest, 0, post=posts.put, turns=turns)
    engine.state.initialise().result(20)
    engine.submit(Begin(STEP, PassKind.TRAIN))
    turns._usual_s = 1.0  # as a turn is only wanted for what takes long
    engine.submit(
        Forward(STEP, PassKind.TRAIN, Microbatch(0), BodyFormat(manifest).pack_tokens(PassKind.TRAIN, TOKENS))
    )
    done = posts.get(timeout=20)
    assert isinstance(done, BackwardDone) and done.seconds > 0.3
    engine._thread.call(lambda: None).result(20)
    worked = sum(s.end - s.start for s in engine.meter.read() if s.kind in (FORWARD, BACKWARD))
    engine.close()
    assert worked < done.seconds - 0.25
