"""A peer that is alone in its stage and does not do its work does not end the run, if another can take its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import PeerExpelled, PeerIdle, PeerMoved, SeatAsked, StepDecided
from swarm.protocol.coordinator.placement import rebalancing
from swarm.simulation.faults.lie import About
from swarm.simulation.runs.misbehaviour import alone
from swarm.simulation.runs.runner import Run
from swarm.simulation.runs.scenario import plan_of

SEEDS = range(15)


def events_of(run: Run) -> list[Any]:
    """Finish the run, which raises a Violation if it does not end with the result of one machine."""
    events: list[Any] = []
    emitted = run.world.watch.emitted

    def on_emitted(event: Any) -> None:
        events.append(event)
        emitted(event)

    run.world.watch.emitted = on_emitted  # type: ignore[method-assign]
    run.finish()
    return events


@pytest.mark.parametrize("about", ["lazy", "unreduced", "failed"])
def test_the_run_ends_although_all_replicas_of_one_stage_do_nothing(about: About) -> None:
    seen = 0
    for seed in SEEDS:
        plan = alone(seed)
        lies = tuple(replace(lie, about=about) for lie in plan.lies)
        events = events_of(Run(replace(plan, lies=lies)))
        assert sum(isinstance(e, StepDecided) for e in events) >= plan.settings.steps
        assert not any(isinstance(e, PeerExpelled) for e in events)
        seen += any(isinstance(e, PeerIdle) for e in events)
    assert seen > len(SEEDS) / 3


def test_an_additional_seat_stays_while_the_peer_beside_it_does_nothing() -> None:
    plan = alone(40)
    assert plan.grows and plan.settings.replicas == 1
    lies = tuple(replace(lie, about="lazy") for lie in plan.lies)
    events = events_of(Run(replace(plan, lies=lies)))
    assert sum(isinstance(e, PeerIdle) for e in events) == 2, "a seat is asked for, and then the peer is left out"
    assert sum(isinstance(e, SeatAsked) for e in events) == 1


@pytest.mark.parametrize("moved", [False, True])
def test_an_empty_stage_is_taken_up_before_the_place_beside_an_idle_peer(
    moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only peer of stage 1 is idle once. That of stage 2 dies and returns. `moved`: it was placed in stage 1."""
    if moved:
        claim = rebalancing.claim
        monkeypatch.setattr(rebalancing, "claim", lambda lineup, *args: claim(replace(lineup, empty=()), *args))
    events = events_of(Run(plan_of("storm", 330115)))
    assert any(isinstance(e, PeerIdle) for e in events)
    assert any(isinstance(e, PeerMoved) and e.source == 1 and e.stage == 2 for e in events) == moved
