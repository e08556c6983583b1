"""The only peer of a stage may pause or leave. If it gives its state to nobody, the run goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swarm.events import RolledBack
from swarm.protocol.coordinator.placement.withheld_states import WithheldStates
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Join, Message, Status
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run
from swarm.simulation.toy.sim_catch_up import Loans
from swarm.simulation.toy.sim_storage import SimStorage

WHO, SINCE_S = "peer1", 0.4


def pauses(message: Message) -> Message:
    return replace(message, paused="a game runs") if isinstance(message, Join | Status) else message


def leaves(message: Message) -> Message:
    return replace(message, leaving=True) if isinstance(message, Status) else message


def rollbacks(says: Callable[[Message], Message], gives: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of rollbacks of a run in which `WHO`, alone in its stage, is about to go for ever. Another peer stands
    by. `gives`: whether it gives its state to others. Raises Violation.
    """
    settings = small_settings(stages=2, microbatches=4, steps=8, replicas=1, checkpoint_every=1000)
    run = Run(Plan("calm", 0, settings, 1, (1.0,) * 3, ()))
    world, count, said = run.world, 0, False
    world.watch.leaving.disturbed = True
    send, emitted, lends, live_state = world.network.send, world.watch.emitted, Loans.lends, SimStorage.live_state

    def on_send(source: Any, to: Actor, message: Any) -> None:
        nonlocal said
        if source.actor.peer == WHO and world.now >= SINCE_S:
            source.disturbed_at = world.now
            said, message = True, says(message)
        send(source, to, message)

    def on_emitted(event: Any) -> None:
        nonlocal count
        count += isinstance(event, RolledBack)
        emitted(event)

    def on_lends(self: Loans, order: Any) -> bool:
        return (gives or self._peer.actor.peer != WHO) and lends(self, order)

    def on_live_state(self: SimStorage, stage: int, version: int) -> int | None:
        return live_state(self, stage, version) if gives or self._peer.actor.peer != WHO else None

    world.network.send, world.watch.emitted = on_send, on_emitted  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        patch.setattr(Loans, "lends", on_lends)
        patch.setattr(SimStorage, "live_state", on_live_state)
        run.finish()
    assert said
    return count


@pytest.mark.parametrize("says", [pauses, leaves])
def test_the_run_goes_back_without_the_state_that_is_kept_back(
    says: Callable[[Message], Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rollbacks(says, False, monkeypatch) == 1
    monkeypatch.setattr(WithheldStates, "has", lambda *_: False)
    with pytest.raises(Violation):
        rollbacks(says, False, monkeypatch)


@pytest.mark.parametrize("says", [pauses, leaves])
def test_a_state_that_is_given_is_not_lost(says: Callable[[Message], Message], monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollbacks(says, True, monkeypatch) == 0
