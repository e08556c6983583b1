"""Keeps the frames that a peer computed in a pass until it leaves the pass, and remembers which peers want them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarm.protocol.answers import Answers
from swarm.protocol.ids import Actor, FrameKey
from swarm.protocol.messages import Frame, Lineage, Payload
from swarm.protocol.outbox import Outbox


@dataclass(frozen=True, slots=True)
class Kept:
    """A computed frame. `whole`: for a receiver without the base of `payload`; None: `payload` needs no base."""

    payload: Payload = field(repr=False)
    lineage: Lineage | None = None
    whole: Payload | None = field(default=None, repr=False)


class FrameCache:
    """Answers a want at once, or remembers it until the frame is computed."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._answers = Answers()
        self._frames: dict[FrameKey, Kept] = {}
        self._wanted_by: dict[FrameKey, dict[Actor, tuple[Actor | None, int]]] = {}
        """The wants that wait for a frame, by frame and peer: the actor that forwards the frame (None: direct), and the
        peer's base.
        """

    def keep(self, key: FrameKey, kept: Kept) -> None:
        """Keep a computed frame, and send it to every peer that wants it."""
        self._frames[key] = kept
        for actor, (via, base) in self._wanted_by.pop(key, {}).items():
            self._out.send(actor, _frame(key, kept, base), via)

    def answer(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> bool:
        """Send a frame to a peer that wants it, unless it had it too often. Return False if the frame is not here."""
        kept = self._frames.get(key)
        if kept is None:
            return False
        if self._answers.allow(sender, key):
            self._out.send(sender, _frame(key, kept, base), via)
        return True

    def wanted(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> None:
        """Remember a request until the frame is computed. A second request does not change its route."""
        self._wanted_by.setdefault(key, {}).setdefault(sender, (via, base))


def _frame(key: FrameKey, kept: Kept, base: int) -> Frame:
    """The frame in a form that a peer with `base` can decode (0: no base)."""
    lineage = kept.lineage
    if kept.whole is None or lineage is None or lineage.base == base:
        return Frame(key, kept.payload, lineage)
    return Frame(key, kept.whole, replace(lineage, base=0))
