"""Checks that the records of steps name the contributors, in a run that averages compressed gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Contribution, Decision, StageTable
from swarm.simulation.kernel.violation import Violation


class RecordedContributions:
    """The rosters of the decided steps, and the contributions that must follow from them."""

    def __init__(self) -> None:
        self._rosters: dict[int, tuple[Decision, tuple[tuple[Actor, ...], ...]]] = {}
        """For each step, the rosters that decided it."""
        self._absent: dict[int, set[str]] = defaultdict(set)
        """For each step, the peers that had died when it was decided."""

    def died(self, step: int, actors: Iterable[str]) -> None:
        """These peers had died when `step` was decided."""
        self._absent[step].update(actors)

    def check(self, decision: Decision, tables: Sequence[StageTable]) -> None:
        """Check that the record names the contributor of every microbatch, and the residuals that entered."""
        before, rosters = self._rosters.get(decision.step - 1, (None, ()))
        goes_on = before is not None and before.term == decision.term and not before.skip
        for stage, (outcome, table) in enumerate(zip(decision.outcomes, tables, strict=True)):
            expected = []
            for place, actor in enumerate(table.roster):
                bits = sum(1 << m for m, who in enumerate(table.assignment) if who == place)
                carried = rosters[stage].index(actor) if goes_on and actor in rosters[stage] else -1
                expected.append(Contribution(bits, -1 if str(actor) in self._absent[decision.step - 1] else carried))
            if outcome.contributions != tuple(expected):
                raise Violation(
                    "same answer", f"step {decision.step} s{stage}: {outcome.contributions}, expected {expected}"
                )
        self._rosters[decision.step] = decision, tuple(table.roster for table in tables)
        self._absent[decision.step].clear()
