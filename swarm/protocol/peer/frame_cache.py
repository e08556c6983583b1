"""The frames that a peer made in a pass, kept until the pass is left, and who wants which of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarm.protocol.ids import Actor, FrameKey
from swarm.protocol.messages import Frame, Lineage, Payload
from swarm.protocol.outbox import Outbox


@dataclass(frozen=True, slots=True)
class Kept:
    """`whole` is sent to those who lack the base of `payload`. None: it is whole itself."""

    payload: Payload = field(repr=False)
    lineage: Lineage | None = None
    whole: Payload | None = field(default=None, repr=False)


class FrameCache:
    """A want is answered at once, or remembered until the frame is there."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._frames: dict[FrameKey, Kept] = {}
        self._wanted_by: dict[FrameKey, dict[Actor, tuple[Actor | None, int]]] = {}
        """Who wants it, through whom (None: directly), and the base it has."""

    def keep(self, key: FrameKey, kept: Kept) -> None:
        """A frame is computed: send it to everybody who wants it."""
        self._frames[key] = kept
        for actor, (via, base) in self._wanted_by.pop(key, {}).items():
            self._out.send(actor, _frame(key, kept, base), via)

    def answer(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> bool:
        """Send a frame that is wanted. False when it is not here."""
        kept = self._frames.get(key)
        if kept is None:
            return False
        self._out.send(sender, _frame(key, kept, base), via)
        return True

    def wanted(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> None:
        """Remember a want until the frame is computed. The first way named is kept."""
        self._wanted_by.setdefault(key, {}).setdefault(sender, (via, base))


def _frame(key: FrameKey, kept: Kept, base: int) -> Frame:
    """The frame as somebody can use it who has `base` (0: none)."""
    lineage = kept.lineage
    if kept.whole is None or lineage is None or lineage.base == base:
        return Frame(key, kept.payload, lineage)
    return Frame(key, kept.whole, replace(lineage, base=0))
