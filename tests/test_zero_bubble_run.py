"""Runs whose peers split backwards, real cores and real compute in one process: the same states, whatever dies."""

from collections.abc import Callable, Iterator

import pytest
from core_swarm import Swarm, killing, manifest, runs, stage_of

from swarm.events import PeerFenced
from swarm.protocol.ids import Actor
from swarm.protocol.peer import io as peer_io

Run = Callable[..., Swarm]


@pytest.fixture
def run() -> Iterator[Run]:
    yield from runs()


class Counted:
    """A hook: how often weights' gradients were ordered at each stage."""

    def __init__(self) -> None:
        self.ordered: dict[int, int] = {}

    def __call__(self, swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, peer_io.Weights):
            stage = stage_of(swarm, actor)
            self.ordered[stage] = self.ordered.get(stage, 0) + 1


@pytest.mark.parametrize("codec", ["none", "int8", "delta:4"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_run_that_splits_equals_the_reference(run: Run, codec: str, tied: bool) -> None:
    counted = Counted()
    swarm = run(manifest(codec, 3, steps=4, tied=tied), hook=counted, splits=True)
    assert swarm.digests() == swarm.reference()
    assert counted.ordered == {stage: 4 * swarm.settings.microbatches for stage in range(3)}, "every one was split"


def test_nothing_is_split_without_memory_for_it(run: Run) -> None:
    counted = Counted()
    swarm = run(manifest("int8", 3, steps=4), hook=counted, splits=True, graph_budget_bytes=0)
    assert swarm.digests() == swarm.reference() and not counted.ordered


@pytest.mark.parametrize("codec", ["int8", "delta:4"])
@pytest.mark.parametrize("stage", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_peer_killed_with_weights_due(run: Run, stage: int, codec: str) -> None:
    """It dies when the order is given: the gradient has left, and nothing of the microbatch is in its sums."""
    swarm = run(manifest(codec, 3, steps=4), hook=killing(2, stage, peer_io.Weights, False, late=True), splits=True)
    assert swarm.digests() == swarm.reference()
    (fence,) = [event for event in swarm.events if isinstance(event, PeerFenced)]
    assert fence.stage == stage and fence.pass_id.endswith(":2") and fence.unfinished


def test_a_run_that_splits_and_computes_layers_again_equals_the_reference(run: Run) -> None:
    counted = Counted()
    swarm = run(manifest("int8", 3, steps=4), hook=counted, splits=True, recomputes_layers=True)
    assert swarm.digests() == swarm.reference()
    assert counted.ordered == {stage: 4 * swarm.settings.microbatches for stage in range(3)}, "every one was split"
