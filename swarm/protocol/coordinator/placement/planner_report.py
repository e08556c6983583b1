"""Reports the findings of the planner to the event log. Changes of the numbers alone are not reported."""

from __future__ import annotations

import re

from swarm.events import PlannerLooked
from swarm.protocol.coordinator.membership.stage_costs import Lineup
from swarm.protocol.coordinator.placement.planner import Move, Stay
from swarm.protocol.outbox import Outbox

STEADY = 1.15
"""Rates that differ from the last reported ones by at most this factor are not reported again."""
_NUMBER = re.compile(r"[\d.]+(e[+-]?\d+)?")


class PlannerReport:
    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last: PlannerLooked | None = None

    def tell(self, lineup: Lineup, found: Move | Stay) -> None:
        rates = [float(f"{rate:.3g}") for rate in lineup.rates()]
        slowest = min(range(len(rates)), key=lambda stage: (rates[stage], stage))
        if isinstance(found, Move):
            gain = float(f"{found.gain:.3g}")
            told = PlannerLooked(slowest, rates, found.reason, str(found.actor), found.source, found.stage, gain)
        else:
            told = PlannerLooked(slowest, rates, found.reason)
        if self._last is None or self._is_news(told, self._last):
            self._last = told
            self._out.emit(told)

    def _is_news(self, told: PlannerLooked, last: PlannerLooked) -> bool:
        if (told.slowest, told.actor, told.stage) != (last.slowest, last.actor, last.stage):
            return True
        if _NUMBER.sub("#", told.reason) != _NUMBER.sub("#", last.reason):
            return True
        pairs = zip(told.rates, last.rates, strict=True)
        return any(not last / STEADY <= rate <= last * STEADY for rate, last in pairs)
