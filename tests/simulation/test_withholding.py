"""Who keeps its part of the sums from one sibling alone has all wait for that one. It is found out all the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from swarm.events import PeerFenced
from swarm.protocol.ids import Actor
from swarm.protocol.messages import ReducePart, Relay
from swarm.protocol.suspicion import Suspicion
from swarm.simulation.runner import Run
from swarm.simulation.scenario import Plan, small_settings

STEPS = 24
WITHHOLDS, VICTIM = Actor("peer3", 1), Actor("peer1", 1)


def fenced(seed: int) -> list[tuple[int, str]]:
    """In which steps who was fenced, in a run of four replicas, one of which keeps its parts from another."""
    settings = small_settings(stages=1, microbatches=8, steps=STEPS, replicas=4, checkpoint_every=1000)
    run = Run(Plan("calm", seed, settings, 0, (1.0,) * 4, ()))
    world, found = run.world, []
    send, emitted = world.network.send, world.watch.emitted
    world.watch.disturbed = True

    def on_send(source: Any, to: Actor, message: Any) -> None:
        inner = message.message if isinstance(message, Relay) else message
        whom = message.destination if isinstance(message, Relay) else to
        if not (isinstance(inner, ReducePart) and inner.key.contributor == WITHHOLDS and whom == VICTIM):
            send(source, to, message)

    def on_emitted(event: Any) -> None:
        if isinstance(event, PeerFenced):
            found.append((int(event.pass_id.rpartition(":")[2]), event.actor))
        emitted(event)

    world.network.send, world.watch.emitted = on_send, on_emitted  # type: ignore[method-assign]
    run.finish()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_who_keeps_its_part_from_a_sibling_is_soon_hardly_ever_asked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = sorted({step for step, _ in fenced(seed)})
    assert steps and len(steps) <= 5, steps
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert gaps == sorted(gaps), "it comes back ever more seldom"
    monkeypatch.setattr(Suspicion, "kept_waiting_by", lambda *_: None)
    before = {step for step, _ in fenced(seed)}
    assert len(before) > 2 * len(steps), "else it takes one sibling after the other with it"
