"""How many microbatches a peer works on at once: enough to keep the pipeline busy, if they fit into its memory."""

from __future__ import annotations

from swarm.protocol.ids import Actor, Microbatch
from swarm.protocol.messages import StageTable
from swarm.protocol.settings import Settings

UNASKED = 4
"""Number of microbatches whose tokens the coordinator sends to each peer of the first stage at the opening of a pass,
without a request.

While the peer computes these, the tokens that it requests arrive.
"""
LEAST = 16
A_STAGE, A_STAGE_AT_LEAST = 4, 2
"""Microbatches per stage of the pipeline. A microbatch on its way through all stages occupies one stage at a time.

With unequal peers, more than four gain nothing (docs/scale.md). With fewer than two, the pipeline runs empty.
"""


def unasked(table: StageTable, actor: Actor) -> list[Microbatch]:
    """The microbatches whose tokens an actor gets at the opening. `table`: that of the first stage at the opening."""
    return sorted(table.assigned_to(actor))[:UNASKED]


def most_at_once(settings: Settings) -> int:
    """The most microbatches of a step on which a peer works at once. It never keeps more graphs than that."""
    return min(settings.microbatches, _most_slots(settings))


def least_at_once(settings: Settings) -> int:
    """The number of microbatches on which a peer works at once if it has little memory."""
    return min(_most_slots(settings), A_STAGE_AT_LEAST * settings.stages)


def _most_slots(settings: Settings) -> int:
    return settings.slots or max(LEAST, A_STAGE * settings.stages)


class Slots:
    """The number of microbatches on which one peer works at once. What the peer learns about its memory is valid for
    its current stage.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = _most_slots(settings)
        self._least = least_at_once(settings)
        self._stage: int | None = None
        self.count = self._most

    def new_pass(self, stage: int) -> None:
        if stage != self._stage:
            self._stage, self.count = stage, self._most

    def no_room(self, beside: int) -> None:
        """The graph of a microbatch was not kept, because `beside` other graphs fill the memory. Its forward will be
        computed again.
        """
        self.count = max(self._least, min(self.count, beside))
