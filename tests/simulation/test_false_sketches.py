"""Who reports a false sketch, and the true one whenever a step is repeated, cannot have each step audited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import StepAborted
from swarm.protocol.coordinator.audit.vain_audits import MOST_DOUBLINGS, VainAudits
from swarm.protocol.coordinator.outcomes import Outcomes
from swarm.protocol.ids import Actor, Term
from swarm.protocol.messages import Prepared, Relay, Released, Status, Want, WithPayload
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

WHO, STEPS = "peer1", 40


def false(prepared: Prepared | None) -> Prepared | None:
    return prepared and replace(prepared, sketch=bytes(len(prepared.sketch)))


def aborts(*, escapes: bool = False) -> int:
    """The number of repeated attempts in a run with three replicas in each of two stages. `escapes`: while a stage has
    fewer replicas, as in a search, `WHO` does nothing. Raises Violation.
    """
    settings = small_settings(stages=2, microbatches=6, steps=STEPS, replicas=3, checkpoint_every=1000)
    settings = replace(settings, audit_every=8, audit_secret=b"x", screened=True)
    run = Run(Plan("calm", 0, settings, 0, (1.0,) * 6, (), people=tuple(range(6))))
    world, count = run.world, 0
    world.watch.leaving.disturbed = True
    send, emitted = world.network.send, world.watch.emitted
    first: dict[int, Term] = {}

    def on_send(source: Any, to: Actor, message: Any) -> None:
        pass_run = source.core.pass_run if source.actor.peer == WHO else None
        if pass_run is not None:
            source.disturbed_at = world.now
            in_first = first.setdefault(pass_run.pass_id.step, pass_run.pass_id.term) == pass_run.pass_id.term
            tried = escapes and len(pass_run.microbatches.table.roster) < settings.replicas
            if tried and isinstance(message, WithPayload | Relay | Prepared | Want | Released):
                return
            if tried and isinstance(message, Status):
                message = replace(message, done=0, forwarded=0, queued=3, prepared=None)
            elif (escapes or in_first) and isinstance(message, Prepared):
                message = false(message)
            elif (escapes or in_first) and isinstance(message, Status):
                message = replace(message, prepared=false(message.prepared))
        send(source, to, message)

    def on_emitted(event: Any) -> None:
        nonlocal count
        count += isinstance(event, StepAborted)
        emitted(event)

    world.network.send, world.watch.emitted = on_send, on_emitted  # type: ignore[method-assign]
    run.finish()
    return count


def test_false_sketches_cause_fewer_and_fewer_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aborts() < STEPS
    monkeypatch.setattr(VainAudits, "may_audit", lambda *_: True)
    assert aborts() > 3 * STEPS


@pytest.mark.slow
def test_who_does_nothing_when_it_is_tried_alone_is_tried_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    aborts(escapes=True)

    def unpunished(self: Outcomes, pass_state: Any, actor: Actor, why: str, now: float) -> None:
        self._failure_history.idle.add(actor.peer, why, self._settings.step_budget_s, now)

    monkeypatch.setattr(Outcomes, "_note_idle", unpunished)
    with pytest.raises(Violation):
        aborts(escapes=True)


def test_the_distance_of_audits_in_vain_doubles() -> None:
    vain, audited = VainAudits(), []
    for step in range(100):
        if vain.may_audit(1, step):
            audited.append(step)
            vain.add([1], step)
        assert vain.may_audit(0, step), "the other stage is audited as ever"
    assert audited == [0, 3, 8, 17, 34, 67]
    for step in range(100, 5000):
        vain.add([1], step)
    assert vain.may_audit(1, 5000 + 2**MOST_DOUBLINGS)
    vain.clear()
    assert vain.may_audit(1, 0)
