"""The actors that this peer can reach directly: connections that broke, and those that did not come back in time."""

from __future__ import annotations

from swarm.protocol.ids import Actor


class Reachability:
    """An actor is unreachable from `grace_s` after its connection broke until the connection is up again."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lost_at: dict[Actor, float] = {}
        self._unreachable: set[Actor] = set()
        self._met: set[Actor] = set()

    def lost(self, other: Actor, now: float) -> None:
        self._forget_older(other)
        self._lost_at[other] = now
        self._met.add(other)

    def up(self, other: Actor) -> bool:
        """A connection is up. True if there was one before: messages in flight at the break may be lost."""
        self._forget_older(other)
        self._lost_at.pop(other, None)
        self._unreachable.discard(other)
        again = other in self._met
        self._met.add(other)
        return again

    def is_up(self, other: Actor) -> bool:
        """True if there is a connection, as far as is known. False for an actor that this peer never tried to reach."""
        return other in self._met and other not in self._lost_at and other not in self._unreachable

    def _forget_older(self, other: Actor) -> None:
        """Forget earlier incarnations of a process that is here again: they do not come back."""
        for old in [a for a in self._met if a.peer == other.peer and a.incarnation < other.incarnation]:
            self._met.discard(old)
            self._unreachable.discard(old)
            self._lost_at.pop(old, None)

    def given_up(self, now: float) -> list[Actor]:
        """The actors whose grace time is over, each returned once."""
        if not self._lost_at:
            return []
        over = [other for other, at in self._lost_at.items() if now >= at + self._grace_s]
        for other in over:
            del self._lost_at[other]
            self._unreachable.add(other)
        return over

    @property
    def unreachable(self) -> list[Actor]:
        return sorted(self._unreachable)

    def deadlines(self) -> list[float]:
        return [at + self._grace_s for at in self._lost_at.values()]
