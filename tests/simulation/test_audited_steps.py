"""What the simulator demands of audits: a lie passes only where docs/trust.md says that audits do not detect it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from run_events import events_in

from swarm.events import StepAudited
from swarm.protocol.coordinator.audit.audits import DECIDE, Audits
from swarm.protocol.coordinator.audit.selection import Selection
from swarm.simulation.faults.lie import About, Lie
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run


def run_of(about: About, every: int, since: int = 1) -> Run:
    """One of three replicas of the only stage lies in all its microbatches, once it holds version `since`."""
    settings = small_settings(stages=1, microbatches=6, steps=8, replicas=3)
    settings = dataclasses.replace(settings, audit_every=every, audit_secret=b"secret", screened=True)
    lies = (None, Lie(about, since=since), None)
    return Run(Plan("liars", 0, settings, 0, (1.0,) * 3, (), lies=lies))


def test_a_lie_between_two_audits_stays_in_the_parameters_of_all_replicas() -> None:
    run = run_of("a quarter more", 4)
    events, before = events_in(run), run.world.watch.ideal
    run.finish()
    audited = [event.step for _, event in events if isinstance(event, StepAudited)]
    after = run.world.watch.ideal
    changed = [step for step in range(8) if after.steps[step].digests != before.steps[step].digests]
    assert changed and changed[0] not in audited
    assert changed == list(range(changed[0], 8)), "what follows is computed from other parameters"
    assert max(audited) > changed[0], "it is found at the next audit"


def undrawn(monkeypatch: pytest.MonkeyPatch, *, newcomers: bool) -> None:
    """Audits take place when somebody is doubted, and of newcomers if `newcomers`."""
    plain = Selection.reason

    def without(self: Selection, *of: Any) -> str:
        reason = plain(self, *of)
        return "" if reason.startswith("one step in") or ("never been" in reason and not newcomers) else reason

    monkeypatch.setattr(Selection, "reason", without)


def test_each_period_has_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn(monkeypatch, newcomers=True)
    with pytest.raises(Violation, match="none of the steps 4 to 7 is audited"):
        run_of("sums", 4, since=99).finish()


def test_a_lie_of_who_was_never_audited_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn(monkeypatch, newcomers=False)
    with pytest.raises(Violation, match="wrong bytes"):
        run_of("sums", 4, since=0).finish()


def test_a_lie_is_not_decided_in_a_run_that_audits_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Audits.judge

    def careless(self: Audits, pass_state: Any, *others: Any) -> Any:
        return judge(self, pass_state, *others) if pass_state.pass_id.step < 2 else DECIDE

    monkeypatch.setattr(Audits, "judge", careless)
    with pytest.raises(Violation, match=r"wrong bytes|none of the steps 2 to 2"):
        run_of("sums", 1, since=2).finish()


@pytest.mark.parametrize("about", ["totals", "sketch"])
def test_sums_that_do_not_add_up_are_never_decided_unaudited(about: About) -> None:
    run = run_of(about, 4)
    run.finish()
    assert run.world.watch.ideal.steps == run_of(about, 4).world.watch.ideal.steps
