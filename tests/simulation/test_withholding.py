"""Who keeps its part of the sums from one sibling alone has all wait for that one. It is found out all the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from swarm.events import PeerFenced
from swarm.protocol.coordinator.passes.stragglers import Stragglers
from swarm.protocol.ids import Actor
from swarm.protocol.messages import ReducedPart, ReducePart, Relay
from swarm.protocol.peer.pass_run import PassRun
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


def virtual_seconds(seed: int, victim: Actor | None) -> float:
    """The duration of a run in which one of four replicas sends the victim parts and sums only through others."""
    settings = small_settings(stages=1, microbatches=10, steps=STEPS, replicas=4, checkpoint_every=1000)
    run = Run(Plan("calm", seed, settings, 0, (1.0,) * 4, ()))
    world, kept_back = run.world, []
    send = world.network.send
    world.watch.leaving.disturbed = True

    def on_send(source: Any, to: Actor, message: Any) -> None:
        own = isinstance(message, ReducePart | ReducedPart) and source.actor == WITHHOLD[0]
        if own and to == victim:
            kept_back.append(message)
        else:
            send(source, to, message)

    world.network.send = on_send  # type: ignore[method-assign]
    run.finish()
    assert bool(kept_back) == (victim is not None)
    return world.now


def test_who_answers_only_through_others_is_asked_through_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = virtual_seconds(0, None)
    lost = virtual_seconds(0, VICTIM) - usual
    monkeypatch.setattr(PassRun, "came_around", lambda *_: None)
    assert lost < 0.6 * (virtual_seconds(0, VICTIM) - usual), "it is asked directly first in every step"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("replicas", "liars"), [(4, 1), (5, 2)])
def test_who_keeps_its_part_from_a_sibling_is_soon_hardly_ever_asked(
    replicas: int, liars: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    withhold = WITHHOLD[:liars]
    steps = sorted({step for step, _ in fenced(seed, replicas, withhold)})
    assert steps and len(steps) <= 5, steps
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert gaps == sorted(gaps), "it comes back ever more seldom"
    monkeypatch.setattr(Stragglers, "kept_waiting_by", lambda *_: ())
    before = {step for step, _ in fenced(seed, replicas, withhold)}
    assert len(before) > 2 * len(steps), "else it takes one sibling after the other with it"
