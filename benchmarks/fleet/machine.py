"""Volunteers' machines: how fast each computes, where it stands, and what its home's line carries."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SPREAD = 10.0
"""The fastest computes so many times as fast as the slowest."""
UPLINK_BYTES_PER_S = (20e6 / 8, 1000e6 / 8)
DOWNLINK_TIMES = 3.0
"""Homes receive faster than they send, up to the fastest line there is."""


@dataclass(frozen=True, slots=True)
class FleetMachine:
    speed: float
    """Times that of the machine for which a workload names its seconds."""
    region: int
    up: float
    """Bytes a second."""
    down: float


def machine(
    number: int,
    seed: int,
    regions: int,
    spread: float = SPREAD,
    uplinks: tuple[float, float] = UPLINK_BYTES_PER_S,
) -> FleetMachine:
    """Machine `number` of a fleet: speeds and up-links are log-uniform in their ranges, regions equally likely."""
    rng = Random(f"machine/{seed}/{number}")
    slowest, fastest = uplinks
    up = slowest * (fastest / slowest) ** rng.random()
    return FleetMachine(
        speed=spread ** (rng.random() - 0.5),
        region=rng.randrange(regions),
        up=up,
        down=min(fastest, DOWNLINK_TIMES * up),
    )


def server(region: int = 0) -> FleetMachine:
    """The organiser's, in a data centre."""
    return FleetMachine(speed=1.0, region=region, up=UPLINK_BYTES_PER_S[1], down=UPLINK_BYTES_PER_S[1])
