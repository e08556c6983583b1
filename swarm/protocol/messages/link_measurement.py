"""The rates of links, and the messages that measure round trips."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class LinkRate:
    """The rate of a link, as measured by its receiver."""

    sender: Actor
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Ping:
    """The receiver answers at once, so that the sender can measure the round trip. The drivers handle it, not the
    cores.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int
    """The number of the Ping."""
