"""People: what each peer has given, over all its starts. One entry a peer id."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_PEOPLE = 40_000
"""Those who come later are counted together."""
OTHERS = "others"
MOST_DEVICES = 8


@dataclass(slots=True)
class Person:
    peer: str
    tokens: dict[str, float] = field(default_factory=dict)
    """By stage (as text), tokens whose microbatches it added to decided steps."""
    seconds: float = 0.0
    """As a member, in lives that have ended."""
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes by kind."""
    received: int = 0
    """Bytes that others say they have sent to it."""
    devices: list[str] = field(default_factory=list)
    faults: int = 0
    last_at: float = 0.0

    def has_device(self, device: str) -> None:
        if device and device not in self.devices and len(self.devices) < MOST_DEVICES:
            self.devices.append(device)


@dataclass(slots=True)
class People:
    by_peer: dict[str, Person] = field(default_factory=dict)
    assigned: bool = False
    """Whether decided steps say who added what. Older logs do not: then nobody's tokens are known."""
    undone: float = 0.0
    """Tokens of steps that were rolled back, and were not taken from anybody: the work was done."""

    def of(self, peer: str) -> Person:
        """The entry of a peer, made at first use."""
        person = self.by_peer.get(peer)
        if person is None:
            if len(self.by_peer) >= MOST_PEOPLE:
                peer = OTHERS
            person = self.by_peer.setdefault(peer, Person(peer))
        return person
