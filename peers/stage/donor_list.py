"""The donors of a state or of sums, and which of them are still usable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.events import Event, PieceRefused
from swarm.events.wording import printable
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_DONORS, Donor
from swarm.state.error import StateError

_TOLD = 200
"""Characters of a donor's own reason in a message."""


class Unavailable(StateError):
    """No donor has the data, and none will have it later."""


@dataclass(slots=True)
class DonorList:
    named: tuple[Donor, ...]
    """The donors named in the order. May be replaced at any time."""
    emit: Callable[[Event], None]
    troubles: dict[Actor, str] = field(default_factory=dict)
    """For each donor whose last transfer failed, the reason."""
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

    def unavailable(self, what: str, why: str) -> Unavailable:
        """The error that `what` cannot be fetched. It names the trouble of each donor, such as a full disk."""
        told = [f"{actor} says: {printable(why)[:_TOLD]}" for actor, why in self.troubles.items() if self.names(actor)]
        return Unavailable(what, f"{why} ({'; '.join(told[:MAX_DONORS])})" if told else why)

    def names(self, actor: Actor) -> bool:
        return any(donor.actor == actor for donor in self.named)

    def refuse(self, actor: Actor, reason: str) -> None:
        """Never ask this donor again."""
        if actor not in self.banned:
            self.emit(PieceRefused(str(actor), reason))
        self.banned.add(actor)
