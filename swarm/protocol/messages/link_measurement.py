"""How fast links are, and what measures them."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class LinkRate:
    """What a link really carries, as its receiver measures it."""

    sender: Actor
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered at once, to tell how long that takes. Cores never see it."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int
    """That of the Ping."""
