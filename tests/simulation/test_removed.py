"""A peer that is removed from a step by its own fault comes back the later, the more time it has cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from run_events import events_in

from swarm.events import PeerExpelled, PeerFenced
from swarm.protocol.coordinator.membership.delays import Delays
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.protocol.ids import Actor
from swarm.simulation.faults.lie import About, Lie
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS, REPLICAS = 60, 3


def a_run(about: About, audit_every: int = 0) -> tuple[list[int], float]:
    """The steps that the first of three replicas was removed from, and the virtual seconds of the run. The peer is
    honest in the first four steps.
    """
    settings = small_settings(stages=1, microbatches=6, steps=STEPS, replicas=REPLICAS, checkpoint_every=1000)
    settings = replace(settings, audit_every=audit_every, audit_secret=b"secret", screened=audit_every > 0)
    lies = (Lie(about, since=4), None, None)
    run = Run(Plan("insiders", 0, settings, 0, (1.0,) * REPLICAS, (), lies=lies))
    events = events_in(run)
    run.finish()
    assert not any(isinstance(event, PeerExpelled) for _, event in events)
    fenced = [event for _, event in events if isinstance(event, PeerFenced)]
    assert all(event.actor.startswith("peer1.") for event in fenced), "nobody else is removed"
    return [int(event.pass_id.rpartition(":")[2]) for event in fenced], run.world.now


@pytest.mark.parametrize("about", ["lazy", "unreduced"])
def test_who_does_nothing_is_soon_hardly_ever_tried(about: About, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, seconds = a_run(about)
    decided = Delays.decided

    def forgiving(self: Delays, *of: Any, removed: bool = False, **more: Any) -> Any:
        return None if removed else decided(self, *of, **more)

    monkeypatch.setattr(Delays, "decided", forgiving)
    before, seconds_before = a_run(about)
    assert len(steps) <= len(before) - 2 and seconds < seconds_before, (steps, before)


@pytest.mark.parametrize("about", ["lazy", "unreduced"])
def test_an_audit_brings_back_nobody_whom_it_can_do_without(about: About, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the three replicas are enough to compare their results. One step in four is audited."""
    steps, seconds = a_run(about, 4)

    def everybody(self: Bench, late: set[Actor], *_: Any) -> set[Actor]:
        return set(late) if self._failure_history.audited_by else set()

    monkeypatch.setattr(Bench, "_recalled", everybody)
    before, seconds_before = a_run(about, 4)
    assert len(steps) < 0.4 * len(before) and seconds < seconds_before, (steps, before)
