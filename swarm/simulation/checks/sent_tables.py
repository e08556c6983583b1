"""Checks that the tables that a coordinator sends are consistent."""

from __future__ import annotations

from collections import defaultdict

from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import StageTable
from swarm.simulation.kernel.violation import Violation


class SentTables:
    """The newest table of each pass and stage, and the peers that were fenced from each pass."""

    def __init__(self) -> None:
        self.newest: dict[tuple[PassId, int], StageTable] = {}
        self.served: defaultdict[tuple[PassId, int], set[Actor]] = defaultdict(set)
        """All peers that were in a table of the pass and stage."""
        self._fenced: dict[PassId, set[Actor]] = defaultdict(set)

    def fences(self, fenced_from: str, fenced: str) -> None:
        """The actor named `fenced` has no part in the pass named `fenced_from` any more."""
        for (pass_id, _), table in self.newest.items():
            if str(pass_id) == fenced_from:
                self._fenced[pass_id].update(actor for actor in table.roster if str(actor) == fenced)

    def sends(self, pass_id: PassId, stage: int, table: StageTable) -> None:
        """A coordinator sends `table` to a peer."""
        key = (pass_id, stage)
        known = self.newest.get(key)
        if known is table:
            return
        if known is not None and table.number < known.number:
            raise Violation("no zombies", f"{pass_id} s{stage}: table {table.number} is sent after {known.number}")
        if known is not None and table.number == known.number and table != known:
            raise Violation("no zombies", f"{pass_id} s{stage}: two different tables of number {table.number}")
        if not table.roster or len(set(table.roster)) != len(table.roster):
            raise Violation("contract", f"{pass_id} s{stage}: roster {table.roster}")
        if any(not 0 <= who < len(table.roster) for who in table.assignment):
            raise Violation("exactly once", f"{pass_id} s{stage}: a microbatch is assigned to no peer")
        void = self._fenced[pass_id].intersection(table.roster)
        if void:
            raise Violation("no zombies", f"{pass_id} s{stage}: fenced {min(void)} is in table {table.number}")
        self.newest[key] = table
        self.served[key].update(table.roster)
