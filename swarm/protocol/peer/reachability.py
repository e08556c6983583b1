"""Tracks which actors this peer can reach directly: connections that broke, and those that were not restored in
time.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor


class Reachability:
    """An actor becomes unreachable if its broken connection is not restored within `grace_s` seconds."""

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
        """A connection is up. Return True if there was one before, because messages in transit at the break may be
        lost.
        """
        self._forget_older(other)
        self._lost_at.pop(other, None)
        self._unreachable.discard(other)
        again = other in self._met
        self._met.add(other)
        return again

    def is_up(self, other: Actor) -> bool:
        """Return True if there is a connection, as far as known. False for an actor that this peer never tried to
        reach.
        """
        return other in self._met and other not in self._lost_at and other not in self._unreachable

    def _forget_older(self, other: Actor) -> None:
        """Forget earlier incarnations of a restarted process: they do not return."""
        for old in [a for a in self._met if a.peer == other.peer and a.incarnation < other.incarnation]:
            self._met.discard(old)
            self._unreachable.discard(old)
            self._lost_at.pop(old, None)

    def given_up(self, now: float) -> list[Actor]:
        """The actors whose grace time has passed. Each is returned once."""
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
