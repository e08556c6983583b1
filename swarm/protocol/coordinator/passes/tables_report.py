"""Reports the table of each stage to the event log, if it differs from the last reported table of that stage."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import TableChanged
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox

STEADY = 1.15
"""A rate counts as unchanged if it differs from the last reported one by at most this factor, because measured rates
fluctuate.
"""


@dataclass(frozen=True, slots=True)
class _Told:
    roster: tuple[Actor, ...]
    weights: list[float]
    rates: list[float]

    def says(self, other: _Told) -> bool:
        """Return True if the difference to `other` is too small for a new report."""
        same = self.roster == other.roster and self.weights == other.weights
        return same and all(_is_like(one, two) for one, two in zip(self.rates, other.rates, strict=True))


class TablesReport:
    """Lives as long as the coordinator's process. At its start, no table has been reported."""

    def __init__(self, members: Members, stage_costs: StageCosts, out: Outbox) -> None:
        self._members = members
        self._stage_costs = stage_costs
        self._out = out
        self._told: dict[int, _Told] = {}

    def tell(self, pass_state: PassState, stage: int, reason: str) -> None:
        """Report the table of `stage`, if necessary. Called when a pass opens and when `stage` has a new table."""
        table = pass_state.tables[stage]
        weights, rates = weights_of(pass_state, stage), self._rates(table.roster, stage)
        now = _Told(table.roster, weights, rates)
        before = self._told.get(stage)
        if before is not None and before.says(now):
            return
        self._told[stage] = now
        roster = [str(actor) for actor in table.roster]
        self._out.emit(TableChanged(str(pass_state.pass_id), stage, table.number, roster, weights, rates, reason))

    def _rates(self, roster: tuple[Actor, ...], stage: int) -> list[float]:
        members = [self._members.get(actor) for actor in roster]
        return [0.0 if m is None else _rounded(self._stage_costs.rate(m, stage), 3) for m in members]


def weights_of(pass_state: PassState, stage: int) -> list[float]:
    """The weights of a stage's roster, in its order, rounded for the report."""
    return [_rounded(pass_state.weights.get(actor, 0.0), 4) for actor in pass_state.tables[stage].roster]


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _is_like(one: float, two: float) -> bool:
    return one / STEADY <= two <= one * STEADY
