"""The donors of a state or of sums, and which of them are still asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.events import Event, PieceRefused
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_DONORS, Donor
from swarm.state.error import StateError


class Unavailable(StateError):
    """No donor has it, or will have it."""


@dataclass(slots=True)
class DonorList:
    named: tuple[Donor, ...]
    """As ordered. May be replaced at any time."""
    emit: Callable[[Event], None]
    banned: set[Actor] = field(default_factory=set)
    """Donors that sent a piece with a wrong hash, or another index than the one that is believed."""

    @property
    def usable(self) -> list[Donor]:
        return [donor for donor in self.named if donor.actor not in self.banned][:MAX_DONORS]

    def sources(self, what: str) -> list[Donor]:
        """The usable donors, at least one. Raises Unavailable, naming `what` is fetched."""
        if not (usable := self.usable):
            raise Unavailable(what, "no donor is left" + (" that can be trusted" if self.banned else ""))
        return usable

    def names(self, actor: Actor) -> bool:
        return any(donor.actor == actor for donor in self.named)

    def refuse(self, actor: Actor, reason: str) -> None:
        """Do not ask a donor again."""
        if actor not in self.banned:
            self.emit(PieceRefused(str(actor), reason))
        self.banned.add(actor)
