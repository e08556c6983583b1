"""Residuals: what compressed averaging has lost in one step, and which residuals are added in the next step.

A replica compresses its share of every bucket, and the bucket's reducer compresses the sum. Each adds what it has lost
to the same place of the next step (error feedback on both sides: Tang et al., DoubleSqueeze, arXiv 1905.05957; Tang et
al., 1-bit Adam, arXiv 2102.02888). So the bytes of a step depend on which replica compressed which share and which sum,
in this step and in the steps before. All actors know this: the table of a pass gives each member's place in the roster
of the decided step before, and the decision records it.

A residual counts if the step before was decided in the same term, was not skipped, and had the same actor in its
roster. The residual of a sum counts if that actor also reduced this bucket then. Otherwise residuals are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor, PassId, StepNumber, Term
from swarm.protocol.messages import Decision, StageTable


@dataclass(frozen=True, slots=True)
class Carry:
    """The residuals that a peer holds: the decided step that they belong to, and the peer's place in that step's
    roster.
    """

    term: Term
    step: StepNumber
    index: int

    @classmethod
    def of(cls, me: Actor, table: StageTable, decision: Decision) -> Carry | None:
        """The residuals of `me` once it has applied `decision`, in which its stage had `table`."""
        if decision.skip or me not in table.roster:
            return None
        return cls(decision.term, decision.step, table.roster.index(me))


def carry_of(me: Actor, table: StageTable, pass_id: PassId, held: Carry | None) -> Carry | None:
    """The residuals that `me` should use in a pass, according to its table. Raises LookupError if it does not hold
    them.
    """
    index = table.carried[table.roster.index(me)] if table.carried and me in table.roster else -1
    if index < 0:
        return None
    if held is None or (held.term, held.step + 1, held.index) != (pass_id.term, pass_id.step, index):
        raise LookupError(f"lacks the residuals of step {pass_id.step - 1}, which the pass needs")
    return held


class Rosters:
    """The rosters of the last decided step, by stage, kept by the coordinator. A restart loses them, but it also ends
    the term.
    """

    def __init__(self) -> None:
        self._decision: Decision | None = None
        self._places: list[dict[Actor, int]] = []

    def decided(self, decision: Decision, tables: Iterable[StageTable], without: frozenset[Actor]) -> None:
        """A step is decided. `without`: actors that died after all others were prepared, and that may return without
        this step.
        """
        self._decision = decision
        self._places = [
            {actor: place for place, actor in enumerate(table.roster) if actor not in without} for table in tables
        ]

    def in_order(self, pass_id: PassId, rosters: Sequence[Sequence[Actor]]) -> list[list[Actor]]:
        """The same rosters, each in the order of the step before as far as possible, so that buckets keep their
        reducers.
        """
        return [self._in_order(self._of(pass_id, stage), roster) for stage, roster in enumerate(rosters)]

    def carried(self, pass_id: PassId, stage: int, roster: Iterable[Actor]) -> tuple[int, ...]:
        """The value of `StageTable.carried` for these rosters."""
        known = self._of(pass_id, stage)
        return tuple(known.get(actor, -1) for actor in roster)

    def _in_order(self, known: dict[Actor, int], roster: Sequence[Actor]) -> list[Actor]:
        return sorted(roster, key=lambda actor: (actor not in known, known.get(actor, 0)))

    def _of(self, pass_id: PassId, stage: int) -> dict[Actor, int]:
        last = self._decision
        if last is None or last.skip or (last.term, last.step + 1) != (pass_id.term, pass_id.step):
            return {}
        return self._places[stage]
