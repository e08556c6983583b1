"""A listener keeps its place while it gets on, but not for ever: what it says of its download cannot be checked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from one_stage import ME, ONE, STAGE, THREE, settings

from swarm.protocol import messages as m
from swarm.protocol.coordinator import listeners as module
from swarm.protocol.coordinator.listeners import PLACE_ARRIVALS, PLACE_BUDGETS, Listeners
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, PassId, StepNumber, Term
from swarm.protocol.outbox import Outbox
from swarm.protocol.stage_needs import ComputeKind, StageNeeds
from swarm.protocol.timeouts import LEAST_LINE


class Swarm:
    """One trains, and the run decides a step in every second. Three listens."""

    def __init__(self, stage_bytes: int = 0, arrival_s: float = 0.0) -> None:
        needs = {ComputeKind.HOST_FP32: StageNeeds((2 * stage_bytes,), (stage_bytes,))} if stage_bytes else {}
        self.settings = replace(settings(steps=10**6), stage_needs=needs)
        self.now, self.fetched, self.sequence = 0.0, 0, 0
        self.history: Any = SimpleNamespace(version=10, rolled_back_in=0, term=1, since=lambda _: [])
        self.members = Members()
        rebalancing: Any = SimpleNamespace(most=8, arrival_s=arrival_s)
        self.listeners = Listeners(self.settings, self.history, self.members, rebalancing, Outbox(ME))
        self.join(ONE)
        self.join(THREE)

    def join(self, actor: Actor) -> None:
        self.members.add(actor, self.now).place(STAGE, self.now)

    def pass_opens(
        self, *, works: bool = False, loading: int | None = 10, version: int | None = None, actor: Actor = THREE
    ) -> None:
        """A second later. `loading`, `version`: the version that the listener says it loads, or holds. It always says
        that more has come.
        """
        self.now += 1.0
        self.history.version += 1
        pass_id = PassId(Term(1), StepNumber(self.history.version))
        self.fetched += 1
        self.sequence += 1
        if (member := self.members.get(actor)) is not None:
            member.heard_at = self.now
            said = m.Status(
                actor, STAGE, version, heard=pass_id, loading=loading, fetched=self.fetched, sequence=self.sequence
            )
            member.report(said, 1)
        self.listeners.of(pass_id, [[ONE, actor] if works else [ONE]], self.now)

    def kept_s(self, most: float, **how: Any) -> float:
        """For how many seconds the listener keeps its place, at most `most`."""
        began = self.now
        while self.now < began + most:
            self.pass_opens(**how)
            member = self.members.get(how.get("actor", THREE))
            if member is not None and member.given_up:
                break
        return self.now - began


def test_a_listener_that_always_claims_progress_loses_its_place() -> None:
    swarm = Swarm()
    budgets_s = PLACE_BUDGETS * swarm.settings.step_budget_s
    assert budgets_s < swarm.kept_s(10 * budgets_s) < budgets_s + 5


def test_a_slow_line_keeps_its_place_until_a_large_stage_is_loaded() -> None:
    swarm = Swarm(stage_bytes=int(LEAST_LINE * 500))
    assert 500 < swarm.kept_s(2000) < 600 + PLACE_BUDGETS * swarm.settings.step_budget_s


def test_what_most_peers_needed_is_not_too_long() -> None:
    swarm = Swarm(arrival_s=50.0)
    assert PLACE_ARRIVALS * 50 < swarm.kept_s(2000) < PLACE_ARRIVALS * 50 + 5


def test_a_listener_that_is_about_to_enter_keeps_its_place() -> None:
    swarm = Swarm()
    for _ in range(200):
        swarm.pass_opens(loading=None, version=swarm.history.version)
    member = swarm.members.get(THREE)
    assert member is not None and not member.given_up


def test_a_listener_that_always_begins_anew_loses_its_place() -> None:
    """Its state is lost, so it says, and it loads the newest version, which is never complete."""
    swarm = Swarm()
    budgets_s = PLACE_BUDGETS * swarm.settings.step_budget_s
    kept_s = 0.0
    while kept_s < 10 * budgets_s and not swarm.members.get(THREE).given_up:  # type: ignore[union-attr]
        kept_s += swarm.kept_s(3, loading=swarm.history.version)
    assert budgets_s < kept_s < budgets_s + 5


def test_coming_back_as_another_process_does_not_begin_anew() -> None:
    swarm = Swarm()
    budgets_s = PLACE_BUDGETS * swarm.settings.step_budget_s
    swarm.kept_s(budgets_s / 2)
    member = swarm.members.get(THREE)
    assert member is not None and not member.given_up
    swarm.members.remove(THREE)
    swarm.pass_opens()  # it is away for a while, which does not count
    swarm.now += 10 * budgets_s
    again = Actor(THREE.peer, 2)
    swarm.join(again)
    assert budgets_s / 2 - 2 < swarm.kept_s(10 * budgets_s, actor=again) < budgets_s / 2 + 5


def test_a_pause_of_the_run_costs_nobody_its_place() -> None:
    swarm = Swarm()
    budgets_s = PLACE_BUDGETS * swarm.settings.step_budget_s
    swarm.pass_opens()
    swarm.now += 10 * budgets_s
    swarm.pass_opens()
    member = swarm.members.get(THREE)
    assert member is not None and not member.given_up


def test_who_has_worked_may_take_as_long_again() -> None:
    swarm = Swarm()
    budgets_s = PLACE_BUDGETS * swarm.settings.step_budget_s
    swarm.kept_s(budgets_s / 2)
    swarm.pass_opens(works=True)
    assert swarm.kept_s(10 * budgets_s) > budgets_s


def test_the_times_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLACES", 3)
    swarm = Swarm()
    for number in range(10):
        actor = Actor(f"peer{number}", 1)
        swarm.join(actor)
        swarm.pass_opens(actor=actor)
        swarm.pass_opens(actor=actor)
    assert len(swarm.listeners._places) == 3
