import dataclasses
import gc
import queue
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from benchmarks.emulated_engine import EmulatedEngine
from swarm.compute import held as held_module
from swarm.compute import packing
from swarm.compute.body import BodyFormat, BodyKind, FrameError
from swarm.compute.engine import StageEngine
from swarm.compute.held import GivenUp, HeldState, StateFreed
from swarm.compute.least_pace import LeastPace
from swarm.compute.optimizer import OptimizerError
from swarm.compute.paced import PacedEngine
from swarm.compute.stage_options import StageOptions
from swarm.models.kinds import build_stage
from swarm.protocol.ids import Actor, Attempt, Direction, FrameKey, PartKey, PassId, PassKind, SumKey
from swarm.protocol.messages import Decision
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Assemble,
    Assembled,
    Backward,
    BackwardDone,
    Begin,
    BucketSummed,
    CancelReduce,
    ComputeFailed,
    Discard,
    EncodePart,
    Forward,
    ForwardDone,
    PartEncoded,
    ResultDone,
    ShowState,
    StateShown,
    StoreSum,
    SumBucket,
)
from swarm.protocol.update import Update

WAIT_S = 20.0
STEP = PassId(0, 0)
UPDATE = Update(1e-3, 0.1, 0.05)
NEXT = PassId(0, 1)
TRAIN = PassKind.TRAIN
IDS = np.arange(14).reshape(2, 7)


class Driver:
    """Collects what an engine posts, and can hold its compute thread between two tasks."""

    def __init__(self, manifest, stage, engine=StageEngine, *options, **further):
        self.posts: queue.SimpleQueue = queue.SimpleQueue()
        self.format = BodyFormat(manifest)
        self.engine = engine(manifest, stage, *options, post=self.posts.put, **further)

    def begin(self, pass_id=STEP, kind=TRAIN):
        self.engine.submit(Begin(pass_id, kind))

    def get(self, kind):
        found = self.posts.get(timeout=WAIT_S)
        assert isinstance(found, kind), found
        return found

    def ask(self, action, kind):
        self.engine.submit(action)
        return self.get(kind)

    def hold(self) -> threading.Event:
        """The thread waits until the event is set: submitted work queues up meanwhile."""
        entered, go = threading.Event(), threading.Event()
        self.engine._thread.call(lambda: (entered.set(), go.wait(WAIT_S)))
        assert entered.wait(WAIT_S)
        return go

    def settle(self) -> list:
        """Everything posted once the queue is empty of what was submitted so far and is more urgent than this."""
        self.engine._thread.call(lambda: None).result(WAIT_S)
        found = []
        while not self.posts.empty():
            found.append(self.posts.get())
        return found

    def reduce_alone(self, pass_id=STEP, stage=0) -> Assembled:
        attempt = Attempt(pass_id, stage, 0)
        for bucket in range(self.engine.buckets):
            total = self.ask(SumBucket(attempt, bucket, ()), BucketSummed)
            self.engine.submit(StoreSum(attempt, bucket, bytes(total.payload)))
        return self.ask(Assemble(attempt), Assembled)


@pytest.fixture
def start(make_manifest):
    drivers = []

    def make(stage=0, *options, initialise=True, engine=StageEngine, manifest=None, **further) -> Driver:
        drivers.append(Driver(manifest or make_manifest(), stage, engine, *options, **further))
        if initialise:
            drivers[-1].engine.state.initialise().result(WAIT_S)
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.engine.close()
        assert not driver.engine._thread._thread.is_alive()


def tokens(driver: Driver) -> bytes:
    return driver.format.pack_tokens(TRAIN, IDS)


def gradient(driver: Driver) -> bytes:
    return driver.format.pack_backward(1, torch.ones(2, 6, 16))


def test_forward_and_backward_equal_plain_torch(start, make_manifest):
    model = make_manifest().model
    first, last = (build_stage(model, stage, seed=1337) for stage in range(2))
    hidden = first(torch.from_numpy(IDS[:, :-1]))
    loss = last.loss_sum(last(hidden), torch.from_numpy(IDS[:, 1:]))
    wanted = torch.autograd.grad(loss, [hidden, *first.parameters()], retain_graph=True)

    a, b = start(0), start(1)
    a.begin()
    b.begin()
    frame = a.ask(Forward(STEP, TRAIN, 1, tokens(a)), ForwardDone)
    assert torch.equal(b.format.unpack_forward(1, frame.payload, TRAIN).hidden, hidden)
    done = b.ask(Forward(STEP, TRAIN, 1, frame.payload), BackwardDone)
    assert torch.equal(b.format.unpack_backward(1, done.payload), wanted[0])
    assert (done.microbatch, done.seconds > 0) == (1, True)
    assert a.ask(Backward(STEP, 1, done.payload), BackwardDone).payload is None

    found = a.reduce_alone()
    assert found.loss_sum == 0.0
    squares = sum((g.double() ** 2).sum().item() for g in wanted[1:])
    assert found.squared_norm == pytest.approx(squares, rel=1e-6)
    assert b.reduce_alone(stage=1).loss_sum == pytest.approx(loss.item(), abs=2**-30)


def test_evaluation_and_generation_come_back_as_results(start, make_manifest):
    manifest = make_manifest(codec="bf16")
    for kind, ids in ((PassKind.EVALUATE, IDS), (PassKind.GENERATE, IDS[:1, :5])):
        a, b = start(0, manifest=manifest), start(1, manifest=manifest)
        pass_id = PassId(0, 0, 1)
        a.begin(pass_id, kind)
        b.begin(pass_id, kind)
        frame = a.ask(Forward(pass_id, kind, 0, a.format.pack_tokens(kind, ids)), ForwardDone)
        done = b.ask(Forward(pass_id, kind, 0, frame.payload), ResultDone)
        assert not b.engine.state.stage._accumulator.flat.any()
        if kind is PassKind.EVALUATE:
            assert done.loss_sum == pytest.approx(12 * np.log(50), rel=0.05)
            assert done.token == -1
        else:
            hidden = b.format.unpack_forward(1, frame.payload, kind).hidden
            logits = build_stage(manifest.model, 1, seed=1337)(hidden)
            assert done.token == logits[0, -1].argmax()


def test_reduce_goes_before_backward_before_forward(start):
    driver = start()
    driver.begin()
    for m in (3, 4):
        driver.ask(Forward(STEP, TRAIN, m, tokens(driver)), ForwardDone)
    go = driver.hold()
    driver.engine.submit(Forward(STEP, TRAIN, 1, tokens(driver)))
    driver.engine.submit(Forward(STEP, TRAIN, 0, tokens(driver)))
    driver.engine.submit(Backward(STEP, 4, gradient(driver)))
    driver.engine.submit(Backward(STEP, 3, gradient(driver)))
    driver.engine.submit(EncodePart(Attempt(STEP, 0, 0), 0))
    go.set()
    order = [driver.posts.get(timeout=WAIT_S) for _ in range(5)]
    assert [type(done) for done in order] == [PartEncoded, BackwardDone, BackwardDone, ForwardDone, ForwardDone]
    assert [done.microbatch for done in order[1:]] == [3, 4, 0, 1]


def test_a_new_pass_drops_the_work_of_the_old_one(start):
    driver = start()
    driver.begin()
    driver.ask(Forward(STEP, TRAIN, 0, tokens(driver)), ForwardDone)
    driver.ask(Backward(STEP, 0, gradient(driver)), BackwardDone)
    driver.ask(Forward(STEP, TRAIN, 1, tokens(driver)), ForwardDone)
    go = driver.hold()
    driver.engine.submit(Backward(STEP, 1, gradient(driver)))
    driver.engine.submit(EncodePart(Attempt(STEP, 0, 0), 0))
    driver.begin(NEXT)
    driver.engine.submit(Forward(STEP, TRAIN, 2, tokens(driver)))  # late
    go.set()
    assert driver.settle() == []
    part = driver.ask(EncodePart(Attempt(NEXT, 0, 0), 0), PartEncoded)
    assert not any(bytes(part.payload))


def test_sums_that_are_restored_late_leave_a_newer_pass_its_work(start):
    driver = start()
    driver.begin()
    go = driver.hold()
    driver.engine.submit(Forward(STEP, TRAIN, 0, tokens(driver)))
    driver.begin(NEXT)
    driver.engine.submit(Forward(NEXT, TRAIN, 1, tokens(driver)))
    driver.engine.restore(Attempt(STEP, 0, 0), [], whole=False)
    go.set()
    done = [driver.posts.get(timeout=WAIT_S)]
    done += driver.settle()
    assert [event.microbatch for event in done if isinstance(event, ForwardDone)] == [1]


def test_a_discarded_microbatch_is_forgotten(start):
    driver = start()
    driver.begin()
    driver.ask(Forward(STEP, TRAIN, 0, tokens(driver)), ForwardDone)
    go = driver.hold()
    driver.engine.submit(Forward(STEP, TRAIN, 1, tokens(driver)))
    driver.engine.submit(Discard(STEP, 0))
    driver.engine.submit(Discard(STEP, 1))
    go.set()
    assert driver.settle() == []
    assert "was not computed here" in driver.ask(Backward(STEP, 0, gradient(driver)), ComputeFailed).reason


def test_a_microbatch_is_never_added_twice(start):
    driver = start()
    driver.begin()
    driver.ask(Forward(STEP, TRAIN, 0, tokens(driver)), ForwardDone)
    driver.ask(Backward(STEP, 0, gradient(driver)), BackwardDone)
    failed = driver.ask(Backward(STEP, 0, gradient(driver)), ComputeFailed)
    assert (failed.pass_id, failed.microbatch) == (STEP, 0)


def test_a_cancelled_attempt_does_no_more(start):
    driver = start()
    driver.begin()
    attempt, newer = Attempt(STEP, 0, 0), Attempt(STEP, 0, 1)
    go = driver.hold()
    driver.engine.submit(EncodePart(attempt, 0))
    driver.engine.submit(EncodePart(newer, 0))
    driver.engine.submit(CancelReduce(attempt))
    go.set()
    assert driver.get(PartEncoded).attempt == newer
    assert driver.settle() == []


def test_parts_that_were_ordered_under_an_older_table_end_with_the_attempt_that_went_on(start):
    driver = start()
    driver.begin()
    go = driver.hold()
    driver.engine.submit(EncodePart(Attempt(STEP, 0, 0), 0))
    driver.engine.submit(CancelReduce(Attempt(STEP, 0, 1)))
    go.set()
    assert driver.settle() == []


def test_a_step_moves_the_version_and_a_skip_moves_nothing_else(start):
    driver = start()
    for pass_id, scale in ((STEP, 0.1), (NEXT, 0.0)):
        driver.begin(pass_id)
        driver.ask(Forward(pass_id, TRAIN, 0, tokens(driver)), ForwardDone)
        driver.ask(Backward(pass_id, 0, gradient(driver)), BackwardDone)
        driver.reduce_alone(pass_id)
        before = driver.engine.state.snapshot().result(WAIT_S)
        apply = Apply(Decision(0, pass_id.step, scale, 1.0, 24, 1.0, (), update=UPDATE), Attempt(pass_id, 0, 0))
        done = driver.ask(apply, AppliedStep)
        after = driver.engine.state.snapshot().result(WAIT_S)
        assert done.step == pass_id.step
        assert after.chain == done.digest != before.chain
        assert driver.engine.state.version == after.version == pass_id.step + 1
        moved = {n.split("/")[0] for n, t in after.tensors.items() if not torch.equal(t, before.tensors[n])}
        assert moved == (set() if scale == 0.0 else {"param", "exp_avg", "exp_avg_sq"})
    assert driver.engine.state.snapshot().result(WAIT_S).digest() == after.digest()
    failed = driver.ask(apply, ComputeFailed)  # a decision is applied once
    assert "decision of step 1 does not fit version 2" in failed.reason


def test_a_decision_is_applied_after_the_next_pass_has_begun(start):
    driver = start()
    driver.begin()
    driver.reduce_alone()
    driver.begin(NEXT)
    driver.ask(Apply(Decision(0, 0, 0.1, 1.0, 24, 1.0, (), update=UPDATE), Attempt(STEP, 0, 0)), AppliedStep)


def applied_alone(driver: Driver) -> Apply:
    """The step is reduced: its decision, which is yet to be applied."""
    driver.begin()
    driver.reduce_alone()
    return Apply(Decision(0, 0, 0.1, 1.0, 24, 1.0, (), update=UPDATE), Attempt(STEP, 0, 0))


class SlowDisk:
    """Writes down what it is given, and waits after the first block."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.written = bytearray()
        self.held = None

    def copy(self, held: HeldState) -> tuple[str, int]:
        self.held = held
        return held.give(self._write).digest, held.version

    def _write(self, block: memoryview) -> None:
        self.written += block
        if not self.began.is_set():
            self.began.set()
            assert self.go.wait(WAIT_S)


def test_a_copy_is_of_one_version_the_next_step_waits_and_microbatches_do_not(start):
    driver, disk = start(), SlowDisk()
    before = driver.engine.state.snapshot().result(WAIT_S)
    apply = applied_alone(driver)
    copied = driver.engine.state.copied(disk.copy)
    assert disk.began.wait(WAIT_S)
    driver.begin(NEXT)
    driver.ask(Forward(NEXT, TRAIN, 0, tokens(driver)), ForwardDone)
    driver.ask(Backward(NEXT, 0, gradient(driver)), BackwardDone)
    driver.engine.submit(apply)
    with pytest.raises(queue.Empty):
        driver.posts.get(timeout=0.3)  # long enough to apply it, if that may be
    assert driver.engine.state.version == 0
    disk.go.set()
    driver.get(AppliedStep)
    assert copied.result(WAIT_S) == (before.digest(), 0) and driver.engine.state.version == 1
    assert bytes(disk.written) == b"".join(before.tensors[name].numpy().tobytes() for name in sorted(before.tensors))
    assert disk.held.waited_s > 0.2


@pytest.mark.parametrize(
    ("closed", "error", "reason"),
    [(False, GivenUp, "training continued without it"), (True, StateFreed, "this peer gives up the stage")],
)
def test_a_copy_that_does_not_get_on_is_given_up_and_says_why(start, monkeypatch, closed, error, reason):
    monkeypatch.setattr(held_module, "STALLED_S", 2 * WAIT_S if closed else 0.2)
    driver, disk = start(), SlowDisk()
    apply = applied_alone(driver)
    copied = driver.engine.state.copied(disk.copy)
    assert disk.began.wait(WAIT_S)
    driver.engine.submit(apply)
    if closed:
        driver.engine.close()
    else:
        driver.get(AppliedStep)
    disk.go.set()
    with pytest.raises(error, match=reason):
        copied.result(WAIT_S)


def test_a_copy_that_fails_keeps_nobody_waiting_and_says_why(start):
    driver = start()

    def full(block: memoryview) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        driver.engine.state.copied(lambda held: held.give(full)).result(WAIT_S)
    driver.ask(applied_alone(driver), AppliedStep)
    other = start(initialise=False)
    with pytest.raises(RuntimeError, match="holds no state yet"):
        other.engine.state.copied(SlowDisk().copy).result(WAIT_S)


def test_a_copy_without_a_thread_fails_at_once_and_the_next_step_does_not_wait(start, monkeypatch):
    driver = start()
    apply = applied_alone(driver)
    begin = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "copy":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(OSError, match=r"to copy version 0 \(can't start new thread\): raise the limit"):
        driver.engine.state.copied(SlowDisk().copy).result(WAIT_S)
    assert not driver.engine.state._holds._held
    driver.ask(apply, AppliedStep)


def test_a_state_that_cannot_be_read_to_its_end_leaves_none(start):
    driver = start()
    state = driver.engine.state.snapshot().result(WAIT_S)
    reads = 0

    class Failing(dict):
        def __getitem__(self, name):
            nonlocal reads
            reads += 1
            if reads > 2:
                raise OSError("the disk fails")
            return super().__getitem__(name)

    with pytest.raises(OSError, match="the disk fails"):
        driver.engine.state.load(dataclasses.replace(state, tensors=Failing(state.tensors))).result(WAIT_S)
    assert driver.engine.state.version is None, "half of it is of another version"
    driver.engine.state.load(state).result(WAIT_S)
    assert driver.engine.state.snapshot().result(WAIT_S).digest() == state.digest()


def test_state_moves_to_another_engine_and_a_wrong_one_is_refused(start, make_manifest):
    donor, other = start(0), start(0, initialise=False)
    assert other.engine.state.version is None
    donor.begin()
    donor.reduce_alone()
    donor.ask(Apply(Decision(0, 0, 0.1, 1.0, 24, 1.0, (), update=UPDATE), Attempt(STEP, 0, 0)), AppliedStep)
    state = donor.engine.state.snapshot().result(WAIT_S)
    other.engine.state.load(state).result(WAIT_S)
    assert other.engine.state.version == 1
    assert (
        other.engine.state.snapshot().result(WAIT_S).digest() == donor.engine.state.snapshot().result(WAIT_S).digest()
    )
    with pytest.raises(OptimizerError, match="is it of another stage"):
        start(1).engine.state.load(state).result(WAIT_S)


def test_what_was_made_while_the_state_came_is_what_it_is_loaded_into(start):
    driver, other = start(0), start(0, initialise=False)
    state = driver.engine.state.snapshot().result(WAIT_S)
    other.engine.state.prepare()
    with pytest.raises(RuntimeError, match="holds no state yet"):
        other.engine.state.snapshot().result(WAIT_S)
    made = other.engine.state._coming
    assert made is not None and other.engine.state.version is None
    other.engine.state.load(state).result(WAIT_S)
    assert other.engine.state.held() is made
    assert other.engine.state.snapshot().result(WAIT_S).digest() == state.digest()


@pytest.mark.parametrize("loads", [False, True])
def test_a_budget_that_changes_while_a_stage_is_built_holds_for_it(start, monkeypatch, loads):
    state = start().engine.state.snapshot().result(WAIT_S)
    driver = start(0, StageOptions(graph_budget_bytes=8 << 20), initialise=False)
    building, go, build = threading.Event(), threading.Event(), driver.engine._build

    def slowly(initialised):
        stage = build(initialised)  # has read the old budget
        building.set()
        assert go.wait(WAIT_S)
        return stage

    monkeypatch.setattr(driver.engine, "_build", slowly)
    done = driver.engine.state.load(state) if loads else driver.engine.state.initialise()
    assert building.wait(WAIT_S)
    driver.engine.limit_graphs(1 << 20)
    go.set()
    done.result(WAIT_S)
    assert driver.engine.state.held()._graphs.budget_bytes == 1 << 20


def test_an_engine_that_closes_drops_the_sums_to_restore_without_a_word(start, caplog):
    driver = start()
    go = driver.hold()
    driver.engine.restore(Attempt(STEP, 0, 0), [], True)
    driver.engine._thread.stop()
    go.set()
    driver.engine.close()
    assert driver.posts.empty() and not caplog.records


def test_a_closed_engine_frees_its_state_even_if_it_is_still_referred_to(start):
    driver = start()
    state = [weakref.ref(tensor) for tensor in driver.engine.state.held().parameters.values()]
    driver.engine.close()
    gc.collect()
    assert state and not any(tensor() is not None for tensor in state)


def test_work_without_state_fails_by_name(start):
    driver = start(initialise=False)
    driver.begin()
    assert "holds no state" in driver.get(ComputeFailed).reason


def test_frames_and_buckets_are_checked_before_the_core_sees_them(start):
    driver = start(0)
    key = FrameKey(STEP, 0, Direction.FORWARD, 0)
    prompt = driver.format.pack_tokens(PassKind.GENERATE, IDS[:1, :3])
    driver.engine.check_frame(key, tokens(driver))
    driver.engine.check_frame(key, prompt)  # nothing has begun that says otherwise
    driver.begin()
    with pytest.raises(FrameError, match="train pass has a body of kind PROMPT"):
        driver.engine.check_frame(key, prompt)
    with pytest.raises(FrameError, match="its header needs"):
        driver.engine.check_frame(FrameKey(STEP, 1, Direction.BACKWARD, 0), b"")
    part = driver.ask(EncodePart(Attempt(STEP, 0, 0), 0), PartEncoded).payload
    driver.engine.check_bucket(SumKey(Attempt(STEP, 0, 0), 0), part)
    with pytest.raises(FrameError, match="bucket 0: packed numbers have"):
        driver.engine.check_bucket(PartKey(Attempt(STEP, 0, 0), 0, Actor("a", 1)), bytes(part)[:-8])
    blocks = -(-driver.engine._buckets.slice(0).stop // packing.BLOCK)
    huge = bytes([64]) * blocks + np.full(blocks * packing.BLOCK, 1e7).tobytes()
    with pytest.raises(
        FrameError, match=r"bucket 0: packed numbers reach 1e\+07; the limit of the grid is 8\.38861e\+06"
    ):
        driver.engine.check_bucket(PartKey(Attempt(STEP, 0, 0), 0, Actor("a", 1)), huge)
    with pytest.raises(FrameError, match="the bucket is of stage 1, but this peer holds stage 0"):
        driver.engine.check_bucket(SumKey(Attempt(STEP, 1, 0), 0), part)


def test_an_overflow_names_the_tensor_and_the_step(start, make_manifest):
    driver = start(0, manifest=make_manifest(grid_bits=44))
    driver.begin(NEXT)
    driver.ask(Forward(NEXT, TRAIN, 0, tokens(driver)), ForwardDone)
    huge = driver.format.pack_backward(1, torch.full((2, 6, 16), 1e6))
    reason = driver.ask(Backward(NEXT, 0, huge), ComputeFailed).reason
    assert "a gradient of model." in reason
    assert "in step 1" in reason


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_graphs_are_kept_within_the_budget_and_let_go(start, budget):
    driver = start(0, StageOptions(graph_budget_bytes=budget))
    driver.begin()
    outputs = []
    run = driver.engine.state.stage._run
    driver.engine.state.stage._run = lambda body: outputs.append(weakref.ref((graph := run(body)).output)) or graph
    done = [driver.ask(Forward(STEP, TRAIN, m, tokens(driver)), ForwardDone) for m in (0, 1)]
    driver.settle()
    gc.collect()
    assert sum(ref() is not None for ref in outputs) == (2 if budget else 0)
    assert [each.kept for each in done] == [budget > 0] * 2
    driver.ask(Backward(STEP, 0, gradient(driver)), BackwardDone)
    driver.begin(NEXT)
    driver.settle()
    gc.collect()
    assert [ref() for ref in outputs] == [None] * (2 if budget else 3)


def test_a_graph_is_measured_without_the_parameters(start):
    driver = start(0)
    driver.begin()
    driver.ask(Forward(STEP, TRAIN, 0, tokens(driver)), ForwardDone)
    one = driver.engine.state.stage._graphs._graph_bytes
    hidden = 2 * 6 * 16 * 4
    assert 5 * hidden < one < 60 * hidden


def test_closing_cancels_what_was_not_done(start):
    driver = start()
    go = driver.hold()
    pending = driver.engine.state.snapshot()
    closing = threading.Thread(target=driver.engine.close)
    closing.start()
    deadline = time.monotonic() + WAIT_S
    while not pending.cancelled() and time.monotonic() < deadline:
        pass
    go.set()
    closing.join(WAIT_S)
    assert pending.cancelled()
    assert driver.engine.state.snapshot().cancelled()


@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["recomputed", "kept"])
def test_a_gradient_at_other_places_than_its_activation_is_refused_at_the_door(start, make_manifest, budget):
    manifest = make_manifest(codec="topk:0.25", backward="topk-shared")
    a, b = (start(stage, StageOptions(graph_budget_bytes=budget), manifest=manifest) for stage in range(2))
    a.begin()
    b.begin()
    bodies = {m: a.format.pack_tokens(TRAIN, (IDS + 9 * m) % 50) for m in (0, 1)}
    frames = {m: a.ask(Forward(STEP, TRAIN, m, body), ForwardDone).payload for m, body in bodies.items()}
    gradients = {m: b.ask(Forward(STEP, TRAIN, m, frame), BackwardDone).payload for m, frame in frames.items()}
    assert not b.engine.state.stage._received
    key = FrameKey(STEP, 1, Direction.BACKWARD, 0)
    a.engine.check_frame(key, gradients[0])
    with pytest.raises(FrameError, match="wrong forward frame"):
        a.engine.check_frame(key, gradients[1])
    a.ask(Backward(STEP, 0, gradients[0]), BackwardDone)
    a.engine.check_frame(key, gradients[0])  # late and ignored, but nothing is wrong with it
    assert set(a.engine.state.stage.sent) == {1}
    a.engine.submit(Discard(STEP, 1))
    a.settle()
    assert not a.engine.state.stage.sent


@pytest.mark.parametrize("kind", [PassKind.EVALUATE, PassKind.GENERATE])
def test_topk_stays_on_when_nothing_is_trained(start, make_manifest, kind):
    manifest = make_manifest(codec="topk:0.25", backward="topk-shared")
    a = start(0, manifest=manifest)
    pass_id = PassId(0, 0, 1)
    a.begin(pass_id, kind)
    ids = IDS if kind is PassKind.EVALUATE else IDS[:1, :6]
    frame = a.ask(Forward(pass_id, kind, 0, a.format.pack_tokens(kind, ids)), ForwardDone).payload
    hidden = a.format.unpack_forward(1, frame, kind).hidden
    assert [int(row.count_nonzero()) for row in hidden] == [6 * 16 // 4] * len(ids)
    assert not a.engine.state.stage.sent


@pytest.mark.parametrize(("codec", "backward"), [("int8", "int8"), ("topk:0.25", "topk-shared")])
def test_an_emulated_stage_makes_frames_of_the_real_size(start, make_manifest, codec, backward):
    manifest = make_manifest(codec=codec, backward=backward)
    emulated = dict(engine=EmulatedEngine, manifest=manifest, forward_s=0.01, backward_s=0.02, parameters=1000)
    a, b, real = start(0, **emulated), start(1, **emulated), start(0, manifest=manifest)
    for driver in (a, b, real):
        driver.begin()
    frame = a.ask(Forward(STEP, TRAIN, 0, tokens(a)), ForwardDone)
    assert frame.seconds >= 0.01
    assert len(frame.payload) == len(real.ask(Forward(STEP, TRAIN, 0, tokens(a)), ForwardDone).payload)
    real.engine.check_frame(FrameKey(STEP, 1, Direction.FORWARD, 0), frame.payload)
    done = b.ask(Forward(STEP, TRAIN, 0, frame.payload), BackwardDone)
    assert done.seconds >= 0.03
    assert a.ask(Backward(STEP, 0, done.payload), BackwardDone).seconds >= 0.02
    assert b.reduce_alone(stage=1).loss_sum == 1.0
    assert a.reduce_alone().finite
    a.ask(Apply(Decision(0, 0, 0.1, 1.0, 24, 1.0, (), update=UPDATE), Attempt(STEP, 0, 0)), AppliedStep)
    prompts = PassId(0, 0, 1)
    a.begin(prompts, PassKind.GENERATE)
    body = a.format.pack_tokens(PassKind.GENERATE, IDS[:1, :7])
    frame = a.ask(Forward(prompts, PassKind.GENERATE, 0, body), ForwardDone)
    assert a.format.unpack_forward(1, frame.payload, PassKind.GENERATE).kind is BodyKind.PROMPT


def test_a_paced_stage_computes_the_same_no_faster(start):
    a, paced = start(0), start(0, engine=PacedEngine, pace=LeastPace(0.05, 0.1))
    last = start(1, engine=PacedEngine, pace=LeastPace(0.05, 0.1))
    for driver in (a, paced, last):
        driver.begin()
    sent = a.ask(Forward(STEP, TRAIN, 0, tokens(a)), ForwardDone)
    slower = paced.ask(Forward(STEP, TRAIN, 0, tokens(a)), ForwardDone)
    assert slower.payload == sent.payload and slower.seconds >= 0.05
    gradient = last.ask(Forward(STEP, TRAIN, 0, sent.payload), BackwardDone)
    assert gradient.seconds >= 0.15, "the last stage goes back at once"
    assert paced.ask(Backward(STEP, 0, gradient.payload), BackwardDone).seconds >= 0.1
    a.ask(Backward(STEP, 0, gradient.payload), BackwardDone)
    assert paced.reduce_alone() == a.reduce_alone()


def test_it_shows_the_state_that_it_holds_and_no_other_version(start):
    first, second = start(), start()
    shown = first.ask(ShowState(0, 5), StateShown)
    assert shown.nonce == 5 and shown == second.ask(ShowState(0, 5), StateShown)
    assert shown.checksum != first.ask(ShowState(0, 6), StateShown).checksum
    assert first.ask(ShowState(1, 5), StateShown).checksum is None
    second.engine.flip_bit()
    assert second.ask(ShowState(0, 5), StateShown).checksum != shown.checksum
    assert start(initialise=False).ask(ShowState(0, 5), StateShown).checksum is None, "it holds nothing yet"
