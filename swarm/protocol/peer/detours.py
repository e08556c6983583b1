"""Ways around broken connections: which actor can forward messages to one that this peer cannot reach."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.protocol.ids import Actor, PassId, StageIndex
from swarm.protocol.messages import StageTable, Unreachable, is_near
from swarm.protocol.peer.pass_context import PassContext


class Detours:
    """The detours of one pass. The caller keeps `tables` and `rosters`, by stage, up to date."""

    def __init__(
        self,
        context: PassContext,
        stage: StageIndex,
        pass_id: PassId,
        tables: Sequence[StageTable],
        rosters: Sequence[frozenset[Actor]],
    ) -> None:
        self.unreachable: set[Actor] = set()
        """Actors whose connection broke and was not restored in time. They are not asked to forward messages."""
        self._me = context.me
        self._coordinator = context.coordinator
        self._is_up = context.is_up
        self._out = context.out
        self._stage = stage
        self._pass_id = pass_id
        self._tables = tables
        self._rosters = rosters
        self._reported: set[Actor] = set()

    def via(self, other: Actor) -> Actor | None:
        """The best of `ways`; None if there is none."""
        return next(iter(self.ways(other)), None)

    def ways(self, other: Actor) -> list[Actor]:
        """The actors that can forward messages to `other`: siblings of either peer, or other peers that both know.

        Actors are preferred in this order. First, those that are connected to this peer. Second, the coordinator,
        which all peers can reach but whose bandwidth is limited. Only if there are none of these, an actor that this
        peer never tried to reach; otherwise every peer would dial every newcomer behind a router.
        """
        there = next((stage for stage, roster in enumerate(self._rosters) if other in roster), None)
        if there is None:
            return []
        others = [actor for s, table in enumerate(self._tables) if is_near(s, there) for actor in table.roster]
        all_near = (*self._tables[self._stage].roster, *self._tables[there].roster, *others)
        left = [actor for actor in all_near if actor not in (self._me, other) and actor not in self.unreachable]
        found = list(dict.fromkeys(actor for actor in left if self._is_up(actor)))
        if self._coordinator not in self.unreachable:
            found.append(self._coordinator)
        return found or left[:1]

    def report(self, other: Actor, via: Actor, reason: str) -> None:
        """Tell the coordinator, once, that this peer cannot reach `other`. `via`: the actor that forwards messages to
        it.
        """
        if other not in self._reported:
            self._reported.add(other)
            self._out.send(self._coordinator, Unreachable(self._pass_id, other))
            self._out.tell_route(other, via, reason)
