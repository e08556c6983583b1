"""A peer that does everything as late as it may costs the run much at first, and then little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import PeerDelays, PeerExpelled, PeerFenced
from swarm.protocol.coordinator.passes.holdups import Holdups
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame, Prepared, ReducedPart, ReducePart, Relay, Status
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS, LATE = 48, Actor("peer3", 1)

_LATE_BY_2_S: dict[str, Any] = {"frames": Frame, "sums": Prepared}


class Outcome:
    def __init__(self, kind: str, stages: int, replicas: int) -> None:
        """Run it. `kind`: what the late peer does."""
        settings = small_settings(stages=stages, microbatches=10, steps=STEPS, replicas=replicas, checkpoint_every=1000)
        run = Run(Plan("calm", 0, settings, 0, (1.0,) * (stages * replicas), ()))
        world = run.world
        self.blamed: list[str] = []
        self.fenced: list[str] = []
        self._send, self._emitted, self._world, self._kind = world.network.send, world.watch.emitted, world, kind
        world.watch.leaving.disturbed = True
        world.network.send, world.watch.emitted = self._on_send, self._on_emitted  # type: ignore[method-assign]
        run.finish()
        self.seconds = world.now

    def _on_send(self, source: Any, to: Actor, message: Any) -> None:
        inner = message.message if isinstance(message, Relay) else message
        if source.actor != LATE or self._world.now < 1.0:
            self._send(source, to, message)
        elif isinstance(inner, _LATE_BY_2_S.get(self._kind, ())):
            self._late(2.0, source, to, message)
        elif self._kind == "sums" and isinstance(message, Status):
            self._send(source, to, replace(message, prepared=None))
        elif self._kind == "parts" and isinstance(inner, ReducePart | ReducedPart):
            self._late(1.0, source, to, message)
        elif self._kind in ("slow work", "hidden work") and isinstance(message, Status):
            source.slowness = 20.0 if self._kind == "hidden work" else 8.0
            message = replace(message, seconds_per_microbatch=message.seconds_per_microbatch and 0.004)
            self._send(source, to, replace(message, queued=0) if self._kind == "hidden work" else message)
        else:
            self._send(source, to, message)

    def _late(self, seconds: float, source: Any, to: Actor, message: Any) -> None:
        send = self._send
        self._world.at(self._world.now + seconds, None, (lambda _: send(source, to, message), None))

    def _on_emitted(self, event: Any) -> None:
        assert not isinstance(event, PeerExpelled)
        if isinstance(event, PeerDelays):
            self.blamed.append(event.actor)
        if isinstance(event, PeerFenced):
            self.fenced.append(event.actor)
        self._emitted(event)


@pytest.mark.parametrize(
    ("kind", "stages", "replicas"), [("parts", 1, 4), ("slow work", 1, 4), ("hidden work", 1, 4), ("hidden work", 2, 3)]
)
def test_who_is_late_in_every_step_is_soon_hardly_ever_asked(
    kind: str, stages: int, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Outcome("", stages, replicas)
    assert not usual.blamed
    late = Outcome(kind, stages, replicas)
    assert late.blamed.count(str(LATE)) > len(late.blamed) / 2
    monkeypatch.setattr(OpenPass, "held_up", lambda *_: None)
    before = Outcome(kind, stages, replicas)
    assert late.seconds - usual.seconds < 0.45 * (before.seconds - usual.seconds)


@pytest.mark.parametrize("kind", ["parts", "sums"])
def test_of_few_replicas_that_wait_for_each_other_one_works_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which of the two is late."""
    usual = Outcome("", 2, 2)
    assert not usual.blamed
    late = Outcome(kind, 2, 2)
    monkeypatch.setattr(Holdups, "_of_few", lambda *_: {})
    before = Outcome(kind, 2, 2)
    assert late.seconds - usual.seconds < 0.85 * (before.seconds - usual.seconds)


def test_who_waits_for_frames_that_are_late_is_hardly_ever_removed_for_it() -> None:
    """Either the peer that waits for them is at fault, or the one that sends them."""
    late = Outcome("frames", 2, 2)
    innocent = [actor for actor in late.fenced if actor != str(LATE)]
    assert len(innocent) < 2 <= len(late.fenced) - len(innocent)
