"""Peers that do wrong inside the run: their numbers look sound and are wrong, or they keep others from getting on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Wrong = Literal["activations", "gradients", "sums", "totals", "sketch"]
LIES: tuple[Wrong, ...] = get_args(Wrong)
Disturbance = Literal["huge", "failed", "mute", "nan"]
DISTURBANCES: tuple[Disturbance, ...] = get_args(Disturbance)
Claim = Literal["spoilt", "unsendable"]
About = Wrong | Disturbance | Claim
LIE = (1 << 90) + (1 << 63)
"""What is added to a sum, or a part of one, that is not what it should be."""
HUGE = 1 << 80
"""A gradient that is finite, and with which no sum of its receiver is."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """What it sends to the next stage, to the one before, to who adds up a bucket, or as who adds it up, is wrong;
    or what it says of its own sums.

    `huge`: what it sends to the stage before is so large that it overflows there. `failed`: it says that it failed on
    whatever it is to compute. `mute`: it trains, and ignores forward-only passes. `nan`: what it adds to its stage's
    sums is not finite. `spoilt`: it says that its state is not finite, and saves none.
    `unsendable`: it says that whatever it computes for others is not finite, and sends a mark for it.
    """
    how_often: float = 1.0
    shy: bool = False
    """Only as long as all replicas of its stage take part: never while it is looked for."""
    stage: int | None = None
    """Only if it gets this stage first; None: whichever it gets."""
    since: int = 0
    """Only once it holds this version."""

    @property
    def of_itself(self) -> bool:
        """What it says is of its own state or sums: others may have to do without what it holds."""
        return self.about in ("nan", "spoilt")
