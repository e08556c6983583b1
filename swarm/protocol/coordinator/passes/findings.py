"""What the repair of an open pass finds, if it cannot mend it by itself."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class Suspect:
    """A finding: the pass should continue without this actor."""

    actor: Actor
    reason: str
    at_fault: bool = True
    """False if the actor is merely gone and has done nothing wrong."""
    accused: tuple[Actor, ...] = ()
    """Other actors that may be at fault instead: the few for which the actor reports to wait."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """A finding: a forward-only pass has taken longer than it may."""

    reason: str
    who: tuple[Actor, ...]
    """Actors that had work in the pass and did not do it."""
