"""Islands: groups of peers that cannot reach any other group, so that no step can be decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.protocol.ids import Actor, Pair


def islands(actors: Iterable[Actor], blocked: Collection[Pair]) -> tuple[tuple[Actor, ...], ...]:
    """The groups, each in order, that of the first actor first. `blocked`: pairs that cannot reach each other.

    Within a group every peer reaches every other, perhaps through a third one.
    """
    left = sorted(actors)
    if left and len(blocked) < len(left) - 1:  # too few to cut off even one: the usual case, in a large swarm
        return (tuple(left),)
    found = []
    while left:
        group, left = [left[0]], left[1:]
        for one in group:  # the list grows meanwhile
            near = [other for other in left if Pair((one, other)) not in blocked]
            group += near
            left = [other for other in left if other not in near]
        found.append(tuple(sorted(group)))
    return tuple(found)
