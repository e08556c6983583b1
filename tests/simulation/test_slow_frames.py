"""Frames that take longer than the whole limit of a step: nobody is at fault, and the run goes on nevertheless."""

from __future__ import annotations

from typing import Any

from swarm.events import RolledBack, StepAborted, StepDecided
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame
from swarm.protocol.settings import STEP_BUDGETS
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS = 3


def test_a_step_of_peers_without_siblings_gets_more_time_when_frames_are_slow() -> None:
    settings = small_settings(stages=2, microbatches=2, steps=STEPS, replicas=1, checkpoint_every=1000)
    slow_s = 1.1 * STEP_BUDGETS * settings.step_budget_s
    run = Run(Plan("calm", 0, settings, 0, (1.0, 1.0), ()))
    world = run.world
    world.watch.leaving.disturbed = True
    carry, emitted = world.network.carry, world.watch.emitted
    events: list[Any] = []

    def carry_slowly(source: Any, to: Actor, message: Any) -> None:
        if isinstance(message, Frame):
            world.at(world.now + slow_s, None, (lambda late: carry(*late), (source, to, message)))
        else:
            carry(source, to, message)

    def on_emitted(event: Any) -> None:
        events.append(event)
        emitted(event)

    world.network.carry, world.watch.emitted = carry_slowly, on_emitted  # type: ignore[method-assign]
    run.finish()
    assert any(isinstance(event, StepAborted) for event in events), "the first limit is too short"
    assert sum(isinstance(event, StepDecided) for event in events) == STEPS
    assert not any(isinstance(event, RolledBack) for event in events)
