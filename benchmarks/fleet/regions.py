"""Regions of the world, and round trips and rates between them, generated from known ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

ROUND_TRIP_S = (0.011, 0.265)
"""Seconds of a round trip between the two nearest regions, and between the two that are farthest apart."""
FLOW_BYTES_PER_S = (1.16e9 / 8, 0.33e9 / 8)
"""Bytes per second of one flow between regions: nearest and farthest."""
WITHIN_S = 0.006
"""Seconds of a round trip between two machines of one region."""
NOISE = 0.1
"""Fraction of the range by which the figures of a pair vary at random, since routes are not great circles."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Round trips and rates, by pair of regions."""

    one_way_s: tuple[tuple[float, ...], ...]
    flow_bytes_per_s: tuple[tuple[float, ...], ...]

    @property
    def count(self) -> int:
        return len(self.one_way_s)


def regions(seed: int, count: int = 10) -> Regions:
    """`count` places at random on a sphere. The farther apart two are, the longer the round trip and the lower the
    rate, with some noise.
    """
    if count < 3:
        raise ValueError(f"{count} regions have no nearest and farthest pair: at least 3 are needed")
    rng = Random(f"regions/{seed}/{count}")
    places = [_place(rng) for _ in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a)]
    angles = {(a, b): math.acos(max(-1.0, min(1.0, _dot(places[a], places[b])))) for a, b in pairs}
    near, far = min(angles.values()), max(angles.values())
    one_way = [[WITHIN_S / 2] * count for _ in range(count)]
    flow = [[math.inf] * count for _ in range(count)]
    for (a, b), angle in angles.items():
        share = (angle - near) / (far - near)
        for table, (first, last), scale in ((one_way, ROUND_TRIP_S, 0.5), (flow, FLOW_BYTES_PER_S, 1.0)):
            noisy = min(1.0, max(0.0, share + NOISE * rng.uniform(-1, 1) if 0 < share < 1 else share))
            table[a][b] = table[b][a] = scale * (first + noisy * (last - first))
    return Regions(tuple(map(tuple, one_way)), tuple(map(tuple, flow)))


def _place(rng: Random) -> tuple[float, float, float]:
    """A place on the sphere, uniformly distributed."""
    z, turn = rng.uniform(-1, 1), rng.uniform(0, 2 * math.pi)
    r = math.sqrt(1 - z * z)
    return r * math.cos(turn), r * math.sin(turn), z


def _dot(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
