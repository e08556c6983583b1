"""No memory for something: the engine gives up what it keeps and does the same work again, to the same bits."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from swarm.compute.body import BodyFormat
from swarm.compute.engine import StageEngine
from swarm.compute.shortage import out_of_memory
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.protocol.ids import Attempt, Microbatch, PassId, PassKind
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Begin,
    ComputeFailed,
    EncodePart,
    Forward,
    ForwardDone,
    MemoryShort,
    PartEncoded,
)

STEP, TRAIN = PassId(0, 0), PassKind.TRAIN
CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to …")
WAIT_S = 20.0


class Run:
    """One engine that computes both microbatches of a step. What is posted, in order."""

    def __init__(self, manifest, stage: int = 0) -> None:
        self.posts: queue.SimpleQueue = queue.SimpleQueue()
        self.format = BodyFormat(manifest)
        self.engine = StageEngine(manifest, stage, post=self.posts.put)
        self.engine.state.initialise().result(WAIT_S)
        self.engine.submit(Begin(STEP, TRAIN))

    def step(self) -> list[object]:
        ids = np.arange(14).reshape(2, 7)
        for m in (0, 1):
            self.engine.submit(Forward(STEP, TRAIN, Microbatch(m), self.format.pack_tokens(TRAIN, ids + m)))
        self.engine._thread.call(lambda: None).result(WAIT_S)
        found = self.posted()
        for m in (0, 1):
            gradient = self.format.pack_backward(1, torch.full((2, 6, 16), 1.0 + m))
            self.engine.submit(Backward(STEP, Microbatch(m), gradient))
        found += self.posted()
        self.engine.submit(EncodePart(Attempt(STEP, 0, 0), 0))
        return found + self.posted()

    def posted(self) -> list[object]:
        """All that is posted until the engine has nothing to do."""
        while self.engine._thread._backlog._heap:
            self.engine._thread.call(lambda: None).result(WAIT_S)
        self.engine._thread.call(lambda: None).result(WAIT_S)
        found = []
        while not self.posts.empty():
            found.append(self.posts.get())
        return found


@pytest.fixture
def start(make_manifest) -> Iterator[Callable[[], Run]]:
    made: list[Run] = []

    def make() -> Run:
        made.append(Run(make_manifest()))
        return made[-1]

    yield make
    for run in made:
        run.engine.close()


def failing(monkeypatch: pytest.MonkeyPatch, of: type, name: str, error: Exception, *calls: int) -> None:
    """These calls of a method, counted from 1, find no memory, when they have done all else."""
    method, made = getattr(of, name), [0]

    def starved(self, *args, **options):
        made[0] += 1
        if made[0] in calls:
            if name != "add":
                method(self, *args, **options)
            raise error
        return method(self, *args, **options)

    monkeypatch.setattr(of, name, starved)


def kinds(posts: list[object]) -> list[type]:
    return [type(post) for post in posts]


def results(posts: list[object]) -> list[object]:
    """But for the time they took, and whether the graph was kept."""
    parts = [bytes(post.payload) for post in posts if isinstance(post, PartEncoded)]
    return parts + [(post.microbatch, bytes(post.payload)) for post in posts if isinstance(post, ForwardDone)]


@pytest.mark.parametrize("error", [CPU, MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to …")])
def test_errors_of_all_allocators_are_known(error: Exception) -> None:
    assert out_of_memory(error)
    assert not out_of_memory(RuntimeError("shapes cannot be multiplied")) and not out_of_memory(ValueError("memory"))


@pytest.mark.parametrize("where", ["_run", "_sent", "backward"])
def test_a_microbatch_is_computed_again_with_fewer_graphs_to_the_same_sums(
    start, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = results(start().step())
    run = start()
    if where == "backward":  # autograd has used up the graph by then
        failing(monkeypatch, BodyFormat, "unpack_backward", CPU, 2)
    else:
        failing(monkeypatch, Stage, where, CPU, 2)
    posts = run.step()
    assert results(posts) == expected
    (short,) = [post for post in posts if isinstance(post, MemoryShort)]
    assert "microbatch 1" in short.what and "DefaultCPUAllocator" in short.what
    assert (short.before, short.now) == ((2, 1) if where == "backward" else (1, 0))
    assert ComputeFailed not in kinds(posts) and len([post for post in posts if isinstance(post, BackwardDone)]) == 2


def test_what_is_half_in_the_sums_is_not_added_again(start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    failing(monkeypatch, Accumulator, "add_one", MemoryError("none"), 1)
    posts = run.step()
    (failed,) = [post for post in posts if isinstance(post, ComputeFailed)]
    assert failed.microbatch == 0 and MemoryShort in kinds(posts)


def test_the_second_time_it_fails(start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    failing(monkeypatch, Stage, "_run", CPU, 1, 2)
    posts = run.step()
    assert kinds(posts)[:3] == [MemoryShort, MemoryShort, ComputeFailed]


def test_fewer_graphs_are_kept_in_later_passes_too(start) -> None:
    run = start()
    assert [post.kept for post in run.step() if isinstance(post, ForwardDone)] == [True, True]
    run.engine.state.stage.relieve()
    run.engine.submit(Begin(STEP, TRAIN))
    assert [post.kept for post in run.step() if isinstance(post, ForwardDone)] == [True, False]
