"""What a peer has of its machine."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.messages import Seating


@dataclass(frozen=True, slots=True)
class Means:
    """As in Join and Status."""

    capacity: float = 1.0
    memory: int | None = None
    uplink: float | None = None
    downlink: float | None = None
    seating: Seating | None = None
