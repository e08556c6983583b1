"""An engine that splits backwards: weights' gradients wait within the memory budget, and the sums are the same bits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.engine import StageEngine
from swarm.compute.least_pace import LeastPace
from swarm.compute.paced import PacedEngine
from swarm.compute.stage_options import StageOptions
from swarm.protocol.ids import Microbatch, PassId, PassKind
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Begin,
    ComputeFailed,
    Discard,
    Forward,
    ForwardDone,
    MemoryShort,
    Weights,
    WeightsDone,
)

STEP, NEXT, TRAIN = PassId(0, 0), PassId(0, 1), PassKind.TRAIN
WAIT_S = 20.0
IDS = np.arange(14).reshape(2, 7)


class Driver:
    """One engine, and what it posts."""

    def __init__(
        self, manifest: Any, stage: int, engine: type[StageEngine], *options: StageOptions, **further: Any
    ) -> None:
        self.posts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.format = BodyFormat(manifest)
        self.engine = engine(manifest, stage, *options, post=self.posts.put, **further)
        self.engine.state.initialise().result(WAIT_S)
        self.engine.submit(Begin(STEP, TRAIN))

    def forward(self, m: int) -> Forward:
        hidden = torch.full((2, 6, 16), 0.1 * (m + 1))
        tokens = torch.from_numpy(IDS)
        body = self.format.pack_forward(1, BodyKind.BATCH, tokens, hidden)
        if self.engine._index == 0:
            body = self.format.pack_tokens(TRAIN, IDS)
        return Forward(STEP, TRAIN, Microbatch(m), body)

    def backward(self, m: int) -> Backward:
        return Backward(STEP, Microbatch(m), self.format.pack_backward(1, torch.full((2, 6, 16), 1.0 + m)))

    def do(self, *actions: Any) -> list[Any]:
        """Submit all while the compute thread waits; returns as many posts, in order."""
        go = self.hold()
        for action in actions:
            self.engine.submit(action)
        go.set()
        return [self.posts.get(timeout=WAIT_S) for _ in actions]

    def hold(self) -> threading.Event:
        """The compute thread waits until the event is set."""
        entered, go = threading.Event(), threading.Event()
        self.engine._thread.call(lambda: (entered.set(), go.wait(WAIT_S)))
        assert entered.wait(WAIT_S)
        return go

    def go_back(self, m: int) -> BackwardDone:
        """Forward and backward of one microbatch."""
        (done,) = self.do(self.forward(m))
        if isinstance(done, ForwardDone):
            (done,) = self.do(self.backward(m))
        assert isinstance(done, BackwardDone), done
        return done

    @property
    def sums(self) -> torch.Tensor:
        assert self.engine.state.stage is not None
        return self.engine.state.stage._accumulator.flat

    @property
    def due_bytes(self) -> int:
        assert self.engine.state.stage is not None
        return self.engine.state.stage._due.nbytes


Start = Callable[..., Driver]


@pytest.fixture
def start(make_manifest: Any) -> Iterator[Start]:
    made: list[Driver] = []

    def make(
        stage: int = 0,
        engine: type[StageEngine] = StageEngine,
        splits: bool = True,
        graph_budget_bytes: int = 1 << 30,
        **further: Any,
    ) -> Driver:
        options = StageOptions(graph_budget_bytes=graph_budget_bytes, splits=splits)
        made.append(Driver(make_manifest(), stage, engine, options, **further))
        return made[-1]

    yield make
    for driver in made:
        driver.engine.close()


@pytest.mark.parametrize("stage", [0, 1], ids=["first", "last"])
def test_sums_are_the_same_bits_and_wait_for_the_weights(start: Start, stage: int) -> None:
    whole, split = start(stage, splits=False), start(stage)
    for m in (0, 1):
        plain, done = whole.go_back(m), split.go_back(m)
        assert done.weights_due and not plain.weights_due and done.payload == plain.payload
    assert whole.sums.any() and not split.sums.any(), "nothing counts yet, the loss neither"
    for m in (1, 0):
        assert split.do(Weights(STEP, Microbatch(m)))[0].microbatch == m
    assert torch.equal(split.sums, whole.sums) and split.due_bytes == 0


def test_nothing_is_left_due_beyond_the_budget(start: Start) -> None:
    bound = start()
    bound.go_back(0)
    split = start(graph_budget_bytes=bound.due_bytes)
    assert split.go_back(0).weights_due and not split.go_back(1).weights_due
    assert not start(graph_budget_bytes=bound.due_bytes - 1).go_back(0).weights_due


def test_forwards_go_first(start: Start) -> None:
    driver = start()
    driver.go_back(0)
    done = driver.do(Weights(STEP, Microbatch(0)), driver.forward(1))
    assert [type(each) for each in done] == [ForwardDone, WeightsDone]


def test_due_weights_make_room_for_a_graph(start: Start) -> None:
    """To compute a forward again would cost more than to compute weights' gradients now."""
    roomy = start()
    roomy.do(roomy.forward(0))
    assert roomy.engine.state.stage is not None
    graph = roomy.engine.state.stage._graphs._graph_bytes
    roomy.do(roomy.backward(0))
    driver = start(graph_budget_bytes=graph + roomy.due_bytes - 1)
    assert driver.go_back(0).weights_due
    weights, forward = driver.do(Weights(STEP, Microbatch(0)), driver.forward(1))
    assert isinstance(weights, WeightsDone) and forward.kept


def test_what_is_discarded_is_not_added(start: Start) -> None:
    driver = start()
    driver.go_back(0)
    driver.go_back(1)
    go = driver.hold()
    driver.engine.submit(Weights(STEP, Microbatch(0)))
    driver.engine.submit(Discard(STEP, Microbatch(0)))
    go.set()
    (done,) = driver.do(Weights(STEP, Microbatch(1)))
    assert isinstance(done, WeightsDone) and done.microbatch == 1 and driver.due_bytes == 0


def test_a_new_pass_forgets_what_is_due(start: Start) -> None:
    driver = start()
    driver.go_back(0)
    driver.engine.submit(Begin(NEXT, TRAIN))
    (failed,) = driver.do(Weights(NEXT, Microbatch(0)))
    assert isinstance(failed, ComputeFailed) and "microbatch 0 has no deferred weight gradients" in failed.reason
    assert driver.due_bytes == 0


def test_who_has_run_out_of_memory_leaves_nothing_due(start: Start) -> None:
    driver = start()
    driver.engine.starve()
    driver.engine.submit(driver.forward(0))
    assert [type(driver.posts.get(timeout=WAIT_S)) for _ in range(2)] == [MemoryShort, ForwardDone]
    (done,) = driver.do(driver.backward(0))
    assert isinstance(done, BackwardDone) and not done.weights_due


def test_both_halves_have_the_pace_of_a_backward(start: Start) -> None:
    driver = start(engine=PacedEngine, pace=LeastPace(0.0, 0.2))
    done = driver.go_back(0)
    (weights,) = driver.do(Weights(STEP, Microbatch(0)))
    assert done.seconds >= 0.1 and weights.seconds >= 0.1
    engine = driver.engine
    assert isinstance(engine, PacedEngine)
    assert (
        engine._seconds(driver.backward(0), split=True) == engine._seconds(Weights(STEP, Microbatch(0)), False) == 0.1
    )
    assert engine._seconds(driver.backward(0), split=False) == 0.2
