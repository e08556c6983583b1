"""The donors of a state or of sums, and which of them are still usable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.events import Event, PieceRefused
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_DONORS, Donor
from swarm.state.error import StateError


class Unavailable(StateError):
    """No donor has the data, and none will have it later."""


@dataclass(slots=True)
class DonorList:
    named: tuple[Donor, ...]
    """The donors named in the order. May be replaced at any time."""
    emit: Callable[[Event], None]
    banned: set[Actor] = field(default_factory=set)
    """Donors that sent a piece with a wrong hash, or an index other than the believed one."""

    @property
    def usable(self) -> list[Donor]:
        return [donor for donor in self.named if donor.actor not in self.banned][:MAX_DONORS]

    def sources(self, what: str) -> list[Donor]:
        """The usable donors, at least one. Raises Unavailable, with `what` (the thing being fetched) in the message."""
        if not (usable := self.usable):
            raise Unavailable(what, "no donor is left" + (" that can be trusted" if self.banned else ""))
        return usable

    def names(self, actor: Actor) -> bool:
        return any(donor.actor == actor for donor in self.named)

    def refuse(self, actor: Actor, reason: str) -> None:
        """Never ask this donor again."""
        if actor not in self.banned:
            self.emit(PieceRefused(str(actor), reason))
        self.banned.add(actor)
