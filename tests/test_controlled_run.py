"""Runs that the organiser steers, real cores and real compute in one process: equal to the record, replayed."""

from collections.abc import Callable, Iterator

import pytest
from core_swarm import COORDINATOR, Corpus, Hook, Swarm, killing, manifest, runs

from peers.run.reference import train_reference
from swarm.events import ControlGiven, StepDecided
from swarm.protocol import io
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.ids import Actor
from swarm.protocol.peer import io as peer_io

STEPS = 4
WISHES = {0: ("rate", "0.5"), 1: ("steps", "7"), 2: ("rate", "3"), 4: ("rate", "1")}
"""By step, what is commanded when it has been decided."""
RATES = (1.0, 1.0, 0.5, 0.5, 3.0, 3.0, 1.0)
"""The next step has opened by then: it is the one after that which a rate is for."""


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def steered(*more: Hook) -> Hook:
    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        step = action.event.step if isinstance(action, io.Emit) and isinstance(action.event, StepDecided) else -1
        if (wish := WISHES.get(step)) is not None:
            swarm.tell(COORDINATOR, coordinator_io.ControlRequested(f"r{step}", *wish, "Ann", ""))
        for other in more:
            other(swarm, actor, action)

    return hook


def restarting(step: int) -> Hook:
    """The coordinator is started again when a step has been decided."""

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, io.Emit) and isinstance(action.event, StepDecided) and action.event.step == step:
            swarm.restart_coordinator()

    return hook


def ended_right(swarm: Swarm) -> None:
    assert sorted(swarm.decisions) == list(range(7)), "later than the manifest says"
    assert [event.number for event in swarm.events if isinstance(event, ControlGiven)] == [1, 2, 3, 4]
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize(
    ("codec", "options"),
    [("int8", {}), ("delta:4", {"stages": 3}), ("int8", {"averaging": "int4"}), ("int8", {"tied": True})],
    ids=["exact", "delta", "averaging", "tied"],
)
def test_rates_and_steps_are_repeated_from_the_record(run, codec: str, options: dict) -> None:
    swarm = run(manifest(codec, steps=STEPS, **options), hook=steered())
    ended_right(swarm)
    assert tuple(swarm.decisions[step].rate for step in range(7)) == RATES
    plain = train_reference(swarm.manifest, Corpus(swarm.manifest), stop_after=7).digests
    assert swarm.digests() != plain, "the record is needed"


def test_bases_are_kept_for_visits_that_lie_beyond_the_manifest(run) -> None:
    """Else all would cross whole there."""
    swarm = run(manifest("delta:4", steps=STEPS), hook=steered())
    assert sum(map(sum, swarm.key_frames()[STEPS:])) == 0
    ended_right(swarm)


def test_who_catches_up_learns_at_the_rates_of_then(run) -> None:
    swarm = run(manifest("int8", steps=STEPS), hook=steered(killing(3, 1, peer_io.EncodePart)))
    ended_right(swarm)


@pytest.mark.parametrize("step", [1, 4])
def test_a_coordinator_that_starts_again_goes_on_at_the_rate_in_force(run, step: int) -> None:
    swarm = run(manifest("int8", steps=STEPS), hook=steered(restarting(step)))
    ended_right(swarm)
