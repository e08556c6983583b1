"""Volunteers' machines: their speed, their region, and the rates of their lines."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SPREAD = 10.0
"""The factor between the fastest and the slowest machine."""
UPLINK_BYTES_PER_S = (20e6 / 8, 1000e6 / 8)
DOWNLINK_TIMES = 3.0
"""The factor by which homes receive faster than they send, up to the fastest line."""


@dataclass(frozen=True, slots=True)
class FleetMachine:
    speed: float
    """Speed relative to the machine for which a workload states its seconds."""
    region: int
    up: float
    """Bytes per second that it can send."""
    down: float


def machine(
    number: int,
    seed: int,
    regions: int,
    spread: float = SPREAD,
    uplinks: tuple[float, float] = UPLINK_BYTES_PER_S,
) -> FleetMachine:
    """Machine `number` of a fleet. Speeds and uplinks are log-uniform in their ranges; all regions are equally
    likely.
    """
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
    """The organiser's machine, in a data centre."""
    return FleetMachine(speed=1.0, region=region, up=UPLINK_BYTES_PER_S[1], down=UPLINK_BYTES_PER_S[1])
