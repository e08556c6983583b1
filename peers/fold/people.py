"""The contributions of each peer id, over all its starts."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_PEOPLE = 40_000
"""Maximum number of people. Further people are counted together."""
OTHERS = "others"
MOST_DEVICES = 8


@dataclass(slots=True)
class Person:
    peer: str
    tokens: dict[str, float] = field(default_factory=dict)
    """Number of tokens in the microbatches that it added to decided steps, by stage (as text)."""
    seconds: float = 0.0
    """Seconds as a member, in starts that have ended."""
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes by kind."""
    received: int = 0
    """Bytes that others reported to have sent to this peer."""
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
    """True if decided steps name their contributors. In older logs they do not, so tokens per peer are unknown."""
    undone: float = 0.0
    """Tokens of rolled-back steps, which still count for the peers: they did the work."""

    def of(self, peer: str) -> Person:
        """The entry of a peer, made at first use."""
        person = self.by_peer.get(peer)
        if person is None:
            if len(self.by_peer) >= MOST_PEOPLE:
                peer = OTHERS
            person = self.by_peer.setdefault(peer, Person(peer))
        return person
