"""The siblings whose parts and sums of a reduction reach this peer only through another actor.

A link may work in one direction only, and an insider may withhold its parts from one sibling. This peer cannot tell the
two apart. So from the next reduction on, it asks such a sibling through another actor at the very beginning, without
first waiting in vain. Nobody is punished for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, PartKey, SumKey

REMEMBERED = 256
"""Number of siblings that are remembered: those that became indirect last."""
MOST_DIRECT = 64
"""A sibling that was indirect again and again counts as direct after at most this number of direct passes."""


@dataclass(slots=True)
class _Record:
    via: Actor
    """The actor that forwarded its last part or sum."""
    needed: int = 1
    """The sibling is indirect until it was direct in this number of consecutive passes."""
    direct: int = 0
    """The number of consecutive passes in which all its parts and sums came directly."""
    around: set[PartKey | SumKey] = field(default_factory=set)
    """The parts and sums of the open pass that have come through another actor, and not directly."""
    heard: bool = False
    """True if a part or a sum has come in the open pass."""


class IndirectSiblings:
    """Outlives the pass. Siblings without a part in a pass are remembered too, because they may come back."""

    def __init__(self) -> None:
        self._records: dict[Actor, _Record] = {}

    def __contains__(self, actor: Actor) -> bool:
        record = self._records.get(actor)
        return record is not None and record.direct < record.needed

    def new_pass(self) -> None:
        """A pass begins."""
        for record in self._records.values():
            if record.heard:
                record.direct = 0 if record.around else record.direct + 1
            record.around.clear()
            record.heard = False

    def came_around(self, actor: Actor, key: PartKey | SumKey, via: Actor) -> bool:
        """A part or a sum of `actor` came through `via` before it came directly. Return True if the actor is indirect
        only now.

        Each time, it must be direct twice as often before it counts as direct again. So this peer waits ever more
        seldom for a sibling that changes its behaviour all the time.
        """
        new, record = actor not in self, self._records.get(actor)
        if record is None:
            record = self._records[actor] = _Record(via)
            if len(self._records) > REMEMBERED:
                del self._records[next(iter(self._records))]
        elif new:
            record.needed = min(MOST_DIRECT, 2 * record.needed)
        record.via, record.direct, record.heard = via, 0, True
        record.around.add(key)
        return new

    def came_directly(self, actor: Actor, key: PartKey | SumKey) -> None:
        """A part or a sum of `actor` came directly, perhaps later than through another actor."""
        if (record := self._records.get(actor)) is not None:
            record.around.discard(key)
            record.heard = True

    def way(self, actor: Actor, ways: Sequence[Actor], tries: int) -> Actor | None:
        """The actor through which to ask `actor` after so many attempts in vain. The first is the one that forwarded
        last; then come all `ways` in turn, because any of them may refuse to forward.
        """
        record = self._records.get(actor)
        if record is not None and record.via in ways:
            ways = (record.via, *(each for each in ways if each != record.via))
        return ways[tries % len(ways)] if ways else None
