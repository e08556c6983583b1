"""A peer that does everything as late as it may costs the run much at first, and then little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import PeerDelays, PeerExpelled
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.ids import Actor
from swarm.protocol.messages import ReducedPart, ReducePart, Relay, Status
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS, LATE = 48, Actor("peer3", 1)


class Outcome:
    def __init__(self, kind: str, stages: int, replicas: int) -> None:
        """Run it. `kind`: what the late peer does."""
        settings = small_settings(stages=stages, microbatches=10, steps=STEPS, replicas=replicas, checkpoint_every=1000)
        run = Run(Plan("calm", 0, settings, 0, (1.0,) * (stages * replicas), ()))
        world = run.world
        self.blamed: list[str] = []
        self._send, self._emitted, self._world, self._kind = world.network.send, world.watch.emitted, world, kind
        world.watch.leaving.disturbed = True
        world.network.send, world.watch.emitted = self._on_send, self._on_emitted  # type: ignore[method-assign]
        run.finish()
        self.seconds = world.now

    def _on_send(self, source: Any, to: Actor, message: Any) -> None:
        inner = message.message if isinstance(message, Relay) else message
        if source.actor != LATE or self._world.now < 1.0:
            self._send(source, to, message)
        elif self._kind == "parts" and isinstance(inner, ReducePart | ReducedPart):
            send = self._send
            self._world.at(self._world.now + 1.0, None, (lambda _: send(source, to, message), None))
        elif self._kind in ("slow work", "hidden work") and isinstance(message, Status):
            source.slowness = 20.0 if self._kind == "hidden work" else 8.0
            message = replace(message, seconds_per_microbatch=message.seconds_per_microbatch and 0.004)
            self._send(source, to, replace(message, queued=0) if self._kind == "hidden work" else message)
        else:
            self._send(source, to, message)

    def _on_emitted(self, event: Any) -> None:
        assert not isinstance(event, PeerExpelled)
        if isinstance(event, PeerDelays):
            self.blamed.append(event.actor)
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
