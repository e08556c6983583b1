"""Checks the promises of audits: how often a step is audited, and which steps may be decided although a peer lied."""

from __future__ import annotations

from itertools import combinations

from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import Decision, StageTable
from swarm.simulation.checks.sent_tables import SentTables
from swarm.simulation.checks.watched import WorldView
from swarm.simulation.faults.lie import About
from swarm.simulation.kernel.violation import Violation

SEALED: tuple[About, ...] = ("totals", "sketch")
"""Lies after which the sketches of the contributions do not add up: every such step is audited."""


class AuditedSteps:
    """The steps that audits have checked, and the peers that they have shown to be honest.

    An audited step must be right. A wrong step may be decided only between two audits, if its liars are peers whose
    work an earlier audit has checked. Each period of `audit_every` steps must contain an audited step. The toy model's
    sketches do not show how long sums are. So here the screen does not notice exaggerated sums.
    """

    def __init__(self, world: WorldView, tables: SentTables) -> None:
        self._world = world
        self._tables = tables
        self._audited: set[int] = set()
        self._alone: set[int] = set()
        """Decided steps in which no stage had two replicas: nobody could check anything."""
        self._shown: set[str] = set()
        """Peers, by id, whose part of an audited step others have computed too."""
        self._lied: set[Actor] = set()
        """Lies since the last decision."""
        self._sealed = False
        """True if one of these lies is one of `SEALED`."""

    def lied(self, liar: Actor, about: str) -> None:
        """A peer gives a wrong result."""
        self._lied.add(liar)
        self._sealed = self._sealed or about in SEALED

    def audited(self, step: int) -> None:
        """The coordinator reports that this step was computed again."""
        self._audited.add(step)

    def allows(self, decision: Decision) -> bool:
        """Return True if the sums of a step that is about to be decided may be wrong."""
        if decision.step in self._audited or self._world.settings.audit_every < 2 or self._sealed:
            return False
        workers = {actor for table in self._deciding(decision) for actor, part in table.shares().items() if part}
        liars = {actor.peer for actor in self._lied & workers}
        return bool(liars) and liars <= self._shown

    def writes(self, decision: Decision) -> None:
        """`decision` is about to be recorded. Raises Violation if it ends a period without an audit."""
        step, every = int(decision.step), self._world.settings.audit_every
        if all(len(table.roster) < 2 for table in self._deciding(decision)):
            self._alone.add(step)
        period = set(range(step + 1 - every, step + 1))
        if every and (step + 1) % every == 0 and not period & (self._audited | self._alone):
            raise Violation("audits", f"none of the steps {min(period)} to {step} is audited; one in {every} must be")

    def decided(self, decision: Decision) -> None:
        """`decision` is on record. Take it into account."""
        if decision.step in self._audited:
            attempts = sorted({at for at, _ in self._tables.newest if at.step == decision.step and at.index == 0})
            for one, two in combinations(map(self._all, attempts), 2):
                for before, after in zip(one, two, strict=True):
                    shares = after.shares()
                    for actor, part in before.shares().items():
                        if part and set(shares.get(actor, ())).isdisjoint(part):
                            self._shown.add(actor.peer)
        self._lied.clear()
        self._sealed = False

    def rolled_back(self, version: int) -> None:
        """The run goes back to `version`: later steps are decided again."""
        for steps in (self._audited, self._alone):
            steps -= {step for step in steps if step >= version}

    def _deciding(self, decision: Decision) -> list[StageTable]:
        return self._all(PassId(decision.term, decision.step))

    def _all(self, pass_id: PassId) -> list[StageTable]:
        """The newest tables of a pass, by stage."""
        return [self._tables.newest[pass_id, stage] for stage in range(self._world.settings.stages)]
