"""How many microbatches a peer works on at once: so many that a pipeline is busy, if they fit into its memory."""

from __future__ import annotations

from swarm.protocol.ids import Actor, Microbatch
from swarm.protocol.messages import StageTable
from swarm.protocol.settings import Settings

UNASKED = 4
"""Inputs that the coordinator sends each peer of the first stage with the opening of a pass: what that one wants comes
while it computes these."""
LEAST = 16
A_STAGE, A_STAGE_AT_LEAST = 4, 2
"""Microbatches for each stage of the pipeline: one that is on its way through all of them is at work in one at a time.
With unequal peers more than four gain nothing (docs/scale.md); with less than two the pipeline runs dry.
"""


def unasked(table: StageTable, actor: Actor) -> list[Microbatch]:
    """Whose tokens an actor is sent with the opening, if `table` is the first stage's as the pass opens."""
    return sorted(table.assigned_to(actor))[:UNASKED]


class Slots:
    """Of one peer. What it learns of its memory holds for the stage it is in."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.slots or max(LEAST, A_STAGE * settings.stages)
        self._least = min(self._most, A_STAGE_AT_LEAST * settings.stages)
        self._stage: int | None = None
        self.count = self._most

    def new_pass(self, stage: int) -> None:
        if stage != self._stage:
            self._stage, self.count = stage, self._most

    def no_room(self, beside: int) -> None:
        """The graph of a microbatch was not kept beside so many others: its forward will be computed again."""
        self.count = max(self._least, min(self.count, beside))
