"""Lists of the members of each stage, those without a stage, and those without a connection. The lists are updated with
every change, so that no query visits all members.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.ids import Actor


class StageRosters:
    """A `Listing`: each member reports its changes to this object."""

    def __init__(self) -> None:
        self.changes = 0
        """The number of changes that the members have reported so far."""
        self._by_stage: dict[int, list[Member]] = {}
        """Each list is sorted by actor."""
        self._unplaced: dict[Actor, Member] = {}
        self._lost: dict[Actor, Member] = {}
        self._withheld: dict[Actor, Member] = {}
        self._arrival: dict[Actor, int] = {}
        self._arrivals = 0
        self._counted_on: dict[int, list[Member]] = {}
        """Cache by stage. An entry is discarded when something in the stage changes."""

    def of_stage(self, stage: int) -> list[Member]:
        return list(self._by_stage.get(stage, ()))

    def counted_on(self, stage: int) -> list[Member]:
        """The available members of a stage: not given up, not left out of this step, not idle, not leaving and not
        absent.

        Do not modify the list. It stays the same object while nothing changes.
        """
        found = self._counted_on.get(stage)
        if found is None:
            those = self._by_stage.get(stage, ())
            found = [m for m in those if not (m.given_up or m.benched or m.yields or m.leaving_since is not None)]
            self._counted_on[stage] = found
        return found

    @property
    def largest(self) -> int:
        """Number of available members in the largest stage."""
        return max((len(self.counted_on(stage)) for stage in self._by_stage), default=0)

    @property
    def withheld(self) -> list[Member]:
        """Members that are leaving or paused, sorted by actor."""
        return sorted(self._withheld.values(), key=_name)

    @property
    def unplaced(self) -> list[Member]:
        return self._in_order(self._unplaced)

    @property
    def lost(self) -> list[Member]:
        return self._in_order(self._lost)

    def came(self, member: Member) -> None:
        self._arrivals += 1
        self._arrival[member.actor] = self._arrivals
        self._list(member)

    def left(self, member: Member) -> None:
        self._strike(member, member.stage)
        self._lost.pop(member.actor, None)
        self._withheld.pop(member.actor, None)
        del self._arrival[member.actor]

    def moved(self, member: Member, before: int | None) -> None:
        """The member moved from the stage `before` to its current one."""
        self._strike(member, before)
        self._list(member)

    def connected(self, member: Member) -> None:
        """The member's connection broke or was restored."""
        self.changed(member.stage)
        if member.lost_at is None:
            self._lost.pop(member.actor, None)
        else:
            self._lost[member.actor] = member

    def withheld_changed(self, member: Member) -> None:
        """The member begins or stops leaving or pausing."""
        if member.is_withheld:
            self._withheld[member.actor] = member
        else:
            self._withheld.pop(member.actor, None)
        self.changed(member.stage)

    def changed(self, stage: int | None) -> None:
        """Another property changed that affects the number of available members of `stage`."""
        self.changes += 1
        if stage is not None:
            self._counted_on.pop(stage, None)

    def _list(self, member: Member) -> None:
        self.changed(member.stage)
        if member.stage is None:
            self._unplaced[member.actor] = member
        else:
            insort(self._by_stage.setdefault(member.stage, []), member, key=_name)

    def _strike(self, member: Member, stage: int | None) -> None:
        self.changed(stage)
        if stage is None:
            del self._unplaced[member.actor]
        else:
            crew = self._by_stage[stage]
            del crew[bisect_left(crew, member.actor, key=_name)]

    def _in_order(self, some: dict[Actor, Member]) -> list[Member]:
        if len(some) < 2:
            return list(some.values())
        return sorted(some.values(), key=lambda member: self._arrival[member.actor])


def _name(member: Member) -> Actor:
    return member.actor
