"""Islands: groups of peers that cannot reach any other group, so that no step can be decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.events import SwarmSplit
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.outbox import Outbox


class Partitions:
    """Which peers cannot connect to each other, and the islands that this makes."""

    def __init__(self, history: History, failure_history: FailureHistory, out: Outbox) -> None:
        self._history = history
        self._failure_history = failure_history
        self._out = out
        self._islands: tuple[tuple[Actor, ...], ...] = ()
        """The islands as found last. A single one: all peers reach each other."""

    def unreachable(self, one: Actor, other: Actor, pass_state: PassState) -> None:
        """Two actors of the open pass cannot connect. Report it if the peers are now divided into other groups."""
        version = self._history.version
        self._failure_history.unreachable(one, other, version)
        actors = (actor for table in pass_state.tables for actor in table.roster)
        groups = islands(actors, self._failure_history.blocked(version))
        if len(groups) > 1 and groups != self._islands:
            self._out.emit(SwarmSplit([[str(actor) for actor in group] for group in groups]))
        self._islands = groups


def islands(actors: Iterable[Actor], blocked: Collection[Pair]) -> tuple[tuple[Actor, ...], ...]:
    """The groups: each is sorted, and the groups are sorted by their first actors. `blocked`: pairs that cannot reach
    each other.

    Within a group, every peer reaches every other one, perhaps through other peers.
    """
    left = sorted(actors)
    # too few blocked pairs to cut off any actor: the usual case in a large swarm
    if left and len(blocked) < len(left) - 1:
        return (tuple(left),)
    found = []
    while left:
        group, left = [left[0]], left[1:]
        for one in group:  # the loop appends to this list
            near = [other for other in left if Pair((one, other)) not in blocked]
            group += near
            left = [other for other in left if other not in near]
        found.append(tuple(sorted(group)))
    return tuple(found)
