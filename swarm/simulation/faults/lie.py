"""Peers that misbehave inside the run: their numbers look sound and are wrong, or they delay others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Wrong = Literal["activations", "gradients", "sums", "totals"]
LIES: tuple[Wrong, ...] = get_args(Wrong)
Disturbance = Literal["huge", "failed", "mute", "nan"]
DISTURBANCES: tuple[Disturbance, ...] = get_args(Disturbance)
Claim = Literal["spoilt", "unsendable"]
About = Wrong | Disturbance | Claim
LIE = 1 << 90
"""Added to a sum, or a part of one, to make it wrong."""
HUGE = 1 << 80
"""A finite gradient with which every sum of its receiver overflows."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """The wrong result: for the next stage, for the stage before, a part for a reducer, or a sum as a reducer.

    `huge`: results for the stage before are so large that they overflow there. `failed`: it reports that every
    computation failed. `mute`: it trains, and ignores forward-only passes. `nan`: its contribution to its stage's sums
    is not finite. `spoilt`: it reports that its state is not finite, and saves none. `unsendable`: it reports that its
    results for others are not finite, and sends a mark instead.
    """
    how_often: float = 1.0
    shy: bool = False
    """Only while all replicas of its stage take part, so never during a search for it."""
    stage: int | None = None
    """Only if it gets this stage first; None: any stage."""
    since: int = 0
    """Only once it holds this version."""

    @property
    def of_itself(self) -> bool:
        """Whether it lies about its own state or sums: others may have to do without its state."""
        return self.about in ("nan", "spoilt")
