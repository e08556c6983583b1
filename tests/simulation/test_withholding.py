"""Who keeps its part of the sums from one sibling alone has all wait for that one. It is found out all the same."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest

from swarm.events import PeerFenced
from swarm.protocol.coordinator.passes.late_reductions import LateReductions
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.ids import Actor
from swarm.protocol.messages import ReducedPart, ReducePart, Relay
from swarm.protocol.peer.all_reduce import AllReduce
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS = 24
WITHHOLD, VICTIM = (Actor("peer3", 1), Actor("peer4", 1)), Actor("peer1", 1)


def fenced(seed: int, replicas: int, withhold: tuple[Actor, ...]) -> list[tuple[int, str]]:
    """In which steps who was fenced, in a run of so many replicas, some of which keep their parts from one sibling."""
    settings = small_settings(stages=1, microbatches=10, steps=STEPS, replicas=replicas, checkpoint_every=1000)
    run = Run(Plan("calm", seed, settings, 0, (1.0,) * replicas, ()))
    world, found = run.world, []
    send, emitted = world.network.send, world.watch.emitted
    world.watch.leaving.disturbed = True

    def on_send(source: Any, to: Actor, message: Any) -> None:
        inner = message.message if isinstance(message, Relay) else message
        whom = message.destination if isinstance(message, Relay) else to
        if not (isinstance(inner, ReducePart) and inner.key.contributor in withhold and whom == VICTIM):
            send(source, to, message)

    def on_emitted(event: Any) -> None:
        if isinstance(event, PeerFenced):
            found.append((int(event.pass_id.rpartition(":")[2]), event.actor))
        emitted(event)

    world.network.send, world.watch.emitted = on_send, on_emitted  # type: ignore[method-assign]
    run.finish()
    return found


def virtual_seconds(
    withhold: Collection[Actor],
    victims: Collection[Actor],
    refuse: Collection[Actor] = (),
    replicas: int = 4,
    one_way: bool = False,
) -> tuple[float, int]:
    """Runs a stage in which some peers send the victims parts and sums only through others, and some forward nothing.

    `one_way`: nothing at all arrives that the withholding peers send to the victims themselves. Returns the duration of
    the run and the number of relayed parts and sums.
    """
    settings = small_settings(stages=1, microbatches=10, steps=STEPS, replicas=replicas, checkpoint_every=1000)
    run = Run(Plan("calm", 0, settings, 0, (1.0,) * replicas, ()))
    world, kept_back, relayed = run.world, 0, 0
    send, emitted = world.network.send, world.watch.emitted
    world.watch.leaving.disturbed = True

    def on_send(source: Any, to: Actor, message: Any) -> None:
        nonlocal kept_back, relayed
        if isinstance(message, Relay):
            relayed += isinstance(message.message, ReducePart | ReducedPart) and source.actor == message.origin
            if source.actor in refuse and source.actor != message.origin:
                return
        own = one_way or isinstance(message, ReducePart | ReducedPart)
        if own and source.actor in withhold and to in victims:
            kept_back += 1
        else:
            send(source, to, message)

    def on_emitted(event: Any) -> None:
        assert not isinstance(event, PeerFenced), "nobody is punished"
        emitted(event)

    world.network.send, world.watch.emitted = on_send, on_emitted  # type: ignore[method-assign]
    run.finish()
    assert kept_back or not victims
    return world.now, relayed


@pytest.mark.parametrize(
    ("replicas", "liars", "victims", "refuse", "one_way"),
    [
        (3, 1, 1, (), False),
        (4, 1, 2, (), True),
        (4, 1, 1, ("peer2",), False),
        (5, 2, 1, (), True),
        (5, 2, 2, ("peer2",), False),
    ],
)
def test_who_answers_only_through_others_costs_next_to_nothing(
    replicas: int, liars: int, victims: int, refuse: tuple[str, ...], one_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    withhold = (Actor("peer3", 1), Actor("peer5", 1))[:liars]
    which = (VICTIM, Actor("peer4", 1))[:victims] if replicas > 3 else (VICTIM,)
    refusing = [Actor(name, 1) for name in refuse]

    def lost() -> float:
        return virtual_seconds(withhold, which, refusing, replicas, one_way)[0] - usual

    monkeypatch.setattr(OpenPass, "held_up", lambda *_: None)  # or it would bound what is lost, too
    usual, relayed = virtual_seconds((), (), (), replicas)
    assert relayed == 0, "nothing takes a detour when nobody needs one"
    now_lost = lost()
    monkeypatch.setattr(AllReduce, "ask_around", lambda *_: None)
    assert now_lost < 0.25 * lost(), "it waits before it asks around, in every step"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("replicas", "liars"), [(4, 1), (5, 2)])
def test_who_keeps_its_part_from_a_sibling_is_soon_hardly_ever_asked(
    replicas: int, liars: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenPass, "held_up", lambda *_: None)  # or it would bound what is lost, too
    withhold = WITHHOLD[:liars]
    steps = sorted({step for step, _ in fenced(seed, replicas, withhold)})
    assert steps and len(steps) <= 5, steps
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert gaps == sorted(gaps), "it comes back ever more seldom"
    monkeypatch.setattr(LateReductions, "kept_waiting_by", lambda *_: ())
    before = {step for step, _ in fenced(seed, replicas, withhold)}
    assert len(before) > 2 * len(steps), "else it takes one sibling after the other with it"
