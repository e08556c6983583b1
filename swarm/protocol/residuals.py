"""Residuals: what compressed averaging lost in one step, and whose counts in the next.

A replica compresses its share of every bucket, the bucket's reducer compresses the sum, and both add what that lost to
the same place of the next step (error feedback on both sides: Tang et al., DoubleSqueeze, arXiv 1905.05957; Tang et
al., 1-bit Adam, arXiv 2102.02888). So a step's bytes depend on who has done what in it and in the steps before. All of
that is common knowledge: the table of a pass tells each member's place in the roster that decided the step before, and
the decision records it.

Residuals count if the step before was decided in the same term, by a roster with the same actor in it, and was not
skipped. Those of a reduced bucket count if that actor reduced it then too. Otherwise they are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor, PassId, StepNumber, Term
from swarm.protocol.messages import Decision, StageTable


@dataclass(frozen=True, slots=True)
class Carry:
    """Of one peer: that it holds the residuals of a decided step, and what was its place in that step's roster."""

    term: Term
    step: StepNumber
    index: int

    @classmethod
    def of(cls, me: Actor, table: StageTable, decision: Decision) -> Carry | None:
        """What `me` holds once it has applied `decision`, in which its stage had `table`."""
        if decision.skip or me not in table.roster:
            return None
        return cls(decision.term, decision.step, table.roster.index(me))


def carry_of(me: Actor, table: StageTable, pass_id: PassId, held: Carry | None) -> Carry | None:
    """The residuals that `me` is to use in a pass, as its table says. Raises LookupError when they are not held."""
    index = table.carried[table.roster.index(me)] if table.carried and me in table.roster else -1
    if index < 0:
        return None
    if held is None or (held.term, held.step + 1, held.index) != (pass_id.term, pass_id.step, index):
        raise LookupError(f"lacks the residuals of step {pass_id.step - 1}, which the pass builds on")
    return held


class Rosters:
    """The coordinator's side: who decided the last step, by stage. Forgotten with the process, which ends the term."""

    def __init__(self) -> None:
        self._decision: Decision | None = None
        self._places: list[dict[Actor, int]] = []

    def decided(self, decision: Decision, tables: Iterable[StageTable], without: frozenset[Actor]) -> None:
        """`without`: who died when all others were prepared. If one of them is back, it has perhaps not applied it."""
        self._decision = decision
        self._places = [
            {actor: place for place, actor in enumerate(table.roster) if actor not in without} for table in tables
        ]

    def in_order(self, pass_id: PassId, rosters: Sequence[Sequence[Actor]]) -> list[list[Actor]]:
        """The same rosters, each as much as possible in the order of the step before: buckets keep their reducers."""
        return [self._in_order(self._of(pass_id, stage), roster) for stage, roster in enumerate(rosters)]

    def carried(self, pass_id: PassId, stage: int, roster: Iterable[Actor]) -> tuple[int, ...]:
        """For `StageTable.carried`."""
        known = self._of(pass_id, stage)
        return tuple(known.get(actor, -1) for actor in roster)

    def _in_order(self, known: dict[Actor, int], roster: Sequence[Actor]) -> list[Actor]:
        return sorted(roster, key=lambda actor: (actor not in known, known.get(actor, 0)))

    def _of(self, pass_id: PassId, stage: int) -> dict[Actor, int]:
        last = self._decision
        if last is None or last.skip or (last.term, last.step + 1) != (pass_id.term, pass_id.step):
            return {}
        return self._places[stage]
