"""When the stages of an open pass were sealed, and when their reductions last progressed, as their members report.

A stage is sealed once its members have accumulated all microbatches that are assigned to them.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol.coordinator.passes.idle_time import excused
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Status


class ReduceProgress:
    """The reductions of one pass. Times are seconds of one clock."""

    def __init__(self, reduces_with: Callable[[int], list[int]]) -> None:
        """`reduces_with`: for a stage, the stages whose members take part in its reduction."""
        self._reduces_with = reduces_with
        self._sealed_at: dict[int, float] = {}
        self._told: dict[Actor, tuple[tuple[int, ...], int]] = {}
        """For each actor, the progress of its reduction, and the table numbers of this reduction. The count begins
        again with new tables.
        """
        self._moved_at: dict[Actor, float] = {}
        """The time when each actor's reduction last progressed."""
        self._stage_moved_at: dict[int, float] = {}
        """For each stage, when a member of its roster last reported progress of the reduction."""

    def seal(self, stage: int, now: float) -> None:
        """The stage is sealed, perhaps for a while."""
        self._sealed_at.setdefault(stage, now)

    def void(self, stage: int) -> None:
        """The stage has a new table: it is not sealed any more."""
        self._sealed_at.pop(stage, None)

    def on_status(self, status: Status, stage: int | None, now: float) -> None:
        """An actor of the stage, or of none, reports its progress."""
        actor, told = status.actor, (status.numbers, status.reduced)
        if told <= self._told.get(actor, ((), 0)):
            return
        self._told[actor] = told
        self._moved_at[actor] = now
        if stage is not None:
            self._stage_moved_at.update(dict.fromkeys(self._reduces_with(stage), now))

    def is_sealed(self, stage: int) -> bool:
        """Return True if the stage itself is sealed, whether or not a stage that reduces with it is."""
        return stage in self._sealed_at

    @property
    def last_sealed_at(self) -> float | None:
        """The time when the last of all sealed stages was sealed. None: none is."""
        return max(self._sealed_at.values(), default=None)

    def sealed_since(self, stage: int) -> float | None:
        """The time since which all inputs of the stage's reduction are accumulated. None: some are missing."""
        stages = self._reduces_with(stage)
        return max(self._sealed_at[s] for s in stages) if all(s in self._sealed_at for s in stages) else None

    def still_since(self, stage: int) -> float | None:
        """The time since which the stage's sealed reduction has made no reported progress. None: the stage is not
        sealed.
        """
        since = self.sealed_since(stage)
        return None if since is None else max(since, self._stage_moved_at.get(stage, since))

    def member_still_since(self, actor: Actor, stage: int) -> float | None:
        """The time since which a member of the stage has reported no progress of its reduction. None: the reduction has
        not begun.
        """
        since = self.sealed_since(stage)
        return None if since is None else max(since, self._moved_at.get(actor, since))

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count these seconds against anybody."""
        self._sealed_at = excused(self._sealed_at, seconds, now)
        self._moved_at = excused(self._moved_at, seconds, now)
        self._stage_moved_at = excused(self._stage_moved_at, seconds, now)
