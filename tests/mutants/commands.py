"""Mutants of what the organiser commands."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.commands import Commands
from swarm.protocol.coordinator.exclusions import Exclusions
from swarm.protocol.coordinator.outcomes import Outcomes
from tests.mutants.mutant import Mutant, Patch


def _rate_of_the_decision() -> list[Patch]:
    """A step is learned from at the rate that is in force when it is decided."""
    decide = Outcomes._record_or_audit

    def late(self: Outcomes, pass_state: Any, decision: Any, without: Any, now: float) -> Any:
        return decide(self, pass_state, dataclasses.replace(decision, rate=self._history.controls.rate), without, now)

    return [(Outcomes, "_record_or_audit", late)]


def _in_force_before_it_is_written() -> list[Patch]:
    judge = Commands._judge

    def at_once(self: Commands, request: Any, under_way: bool, over: str) -> None:
        before = len(self._pending)
        judge(self, request, under_way, over)
        for command in self._pending[before:]:
            self.written(command)

    return [(Commands, "_judge", at_once)]


def _every_request_is_new() -> list[Patch]:
    return [(Controls, "number_of", lambda self, request: None)]


def _expulsion_forgotten() -> list[Patch]:
    """A coordinator that starts again takes everybody back."""
    start = Exclusions.__init__

    def forgetful(self: Exclusions, *arguments: Any) -> None:
        start(self, *arguments)
        self._reasons = {}

    return [(Exclusions, "__init__", forgetful)]


def _told_before_it_is_written() -> list[Patch]:
    """An audit's expulsion takes effect at once. The coordinator may die before it is in the record."""
    exclude = Exclusions.by_audit

    def at_once(self: Exclusions, accused: Any, step: int) -> Any:
        present = exclude(self, accused, step)
        del self._unwritten[accused.actor.peer]
        self.halt(accused.actor)
        return present

    return [(Exclusions, "by_audit", at_once)]


COMMANDS = (
    Mutant("rate of the decision", "a rate counts for steps that open later", _rate_of_the_decision, "controls"),
    Mutant(
        "in force before it is written",
        "a command is durable before it takes effect",
        _in_force_before_it_is_written,
        "controls",
    ),
    Mutant("every request is new", "a request that comes again is one command", _every_request_is_new, "controls"),
    Mutant("expulsion forgotten", "the record remembers who is expelled", _expulsion_forgotten, "controls"),
    Mutant(
        "told before it is written",
        "a peer is told that it is expelled when the record says so",
        _told_before_it_is_written,
        "passes",
    ),
)
