"""Finds out whether a single peer makes a step non-finite by its contribution to the sums of its stage.

Before such a step is skipped, one half of each stage's replicas does it again, then the other half. If one half gets a
finite result, that result is decided, and one of the peers left out is at fault. All devices of one person are in the
same half (`People`), in all stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import Actor


class Halves:
    """The halves of the replicas, for the step that is to be decided next."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._left: list[frozenset[str]] | None = None
        """The halves that must still be left out, in order. None: the replicas are not divided yet."""
        self.left_out: frozenset[str] = frozenset()
        """Peers that get no work in the next attempt, if their stages have other peers."""

    @property
    def begun(self) -> bool:
        return self._left is not None

    def split(self, rosters: Sequence[Sequence[Actor]], step: int) -> bool:
        """The step was not finite with these rosters. Split them into halves. Return False if no stage has two
        replicas.

        The halves change from step to step, so that no two peers stay in the same half for long.
        """
        sides: tuple[set[str], set[str]] = (set(), set())
        side_of: dict[str, int] = {}
        for stage, roster in enumerate(rosters):
            here: set[int] = set()
            for place, actor in enumerate(roster if len(roster) > 1 else ()):
                side = (place + place // 2 * step + (step >> stage)) % 2
                if here == {side}:
                    side = 1 - side  # both halves must contain a replica of this stage
                side = side_of.setdefault(self._people.of(actor.peer), side)
                sides[side].add(actor.peer)
                here.add(side)
        self._left = [frozenset(side) for side in sides if side]
        return self.next()

    def leaves_out(self, peer: str) -> bool:
        """Return True if a peer gets no work in the next attempt, provided that its stage has others.

        All devices of a person are left out together, even those that had no work when the step was split. Otherwise
        one of them could make the other half non-finite.
        """
        if not self.left_out or peer in self.left_out:
            return peer in self.left_out
        return self._people.of(peer) in map(self._people.of, self.left_out)

    def next(self) -> bool:
        """Leave out the next half. Return False if both halves have been left out once."""
        self.left_out = self._left.pop(0) if self._left else frozenset()
        return bool(self.left_out)

    def clear(self) -> None:
        self._left, self.left_out = None, frozenset()
