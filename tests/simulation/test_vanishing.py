"""A peer that takes work, holds it back and restarts before anybody may call it stuck costs little in the long run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from swarm.events import PeerDelays, PeerExpelled
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import Status
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS, REPLICAS, WHO = 160, 4, "peer3"
HOLD_S = 0.4
"""The deadline for a peer without progress is 0.5 s: a twelfth of the step budget."""


class Vanishing:
    """A run in which one device accepts its share of each step, reports no progress, and is a new process soon."""

    def __init__(self) -> None:
        settings = small_settings(stages=1, microbatches=10, steps=STEPS, replicas=REPLICAS, checkpoint_every=1000)
        self._run = Run(Plan("calm", 0, settings, 0, (1.0,) * REPLICAS, ()))
        world = self._world = self._run.world
        self._send, self._emitted = world.network.send, world.watch.emitted
        world.watch.leaving.disturbed = True
        world.network.send, world.watch.emitted = self._on_send, self._on_emitted  # type: ignore[method-assign]
        self._held: set[PassId] = set()
        self.times: list[float] = []
        """When it vanished."""
        self.blamed: set[str] = set()
        self._run.finish()

    def _on_send(self, source: Any, to: Actor, message: Any) -> None:
        if source.actor.peer != WHO or self._world.now < 1.0:
            self._send(source, to, message)
            return
        pass_run = source.core.pass_run
        if pass_run is not None and pass_run.pass_id not in self._held and pass_run.microbatches.work:
            self._held.add(pass_run.pass_id)
            self._world.at(self._world.now + HOLD_S, None, (self._vanish, source))
        if pass_run is None or pass_run.pass_id not in self._held:
            self._send(source, to, message)
        elif isinstance(message, Status):
            self._send(source, to, replace(message, done=0, forwarded=0, queued=0, prepared=None))

    def _vanish(self, source: Any) -> None:
        if source.alive:
            self.times.append(self._world.now)
            self._run.injector.kill(source, 0.05)

    def _on_emitted(self, event: Any) -> None:
        assert not isinstance(event, PeerExpelled)
        if isinstance(event, PeerDelays):
            self.blamed.add(event.actor.partition(".")[0])
        self._emitted(event)


def test_who_vanishes_with_its_work_gets_ever_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Vanishing()
    assert found.blamed == {WHO}
    gaps = [later - earlier for earlier, later in pairwise(found.times)]
    assert gaps[-1] > 1.5 * gaps[0], gaps
    monkeypatch.setattr(OpenPass, "lost", OpenPass.exclude)
    before = Vanishing()
    assert not before.blamed and len(before.times) > 1.2 * len(found.times)
