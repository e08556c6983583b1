"""Peers that do wrong inside the run: their numbers look sound and are wrong, or they keep others from getting on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Wrong = Literal["activations", "gradients", "sums", "totals"]
LIES: tuple[Wrong, ...] = get_args(Wrong)
Disturbance = Literal["huge", "failed", "mute", "nan"]
DISTURBANCES: tuple[Disturbance, ...] = get_args(Disturbance)
About = Wrong | Disturbance
LIE = 1 << 90
"""What is added to a sum, or a part of one, that is not what it should be."""
HUGE = 1 << 80
"""A gradient that is finite, and with which no sum of its receiver is."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """What it sends to the next stage, to the one before, to who adds up a bucket, or as who adds it up, is wrong.

    `huge`: what it sends to the stage before is so large that it overflows there. `failed`: it says that it failed on
    whatever it is to compute. `mute`: it trains, and ignores forward-only passes. `nan`: what it adds to its stage's
    sums is not finite.
    """
    how_often: float = 1.0
    shy: bool = False
    """Only as long as all replicas of its stage take part: never while it is looked for."""
