"""Islands: groups of peers that cannot reach any other group, so that no step can be decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.protocol.ids import Actor, Pair


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
