"""A peer whose numbers look sound and are wrong: on purpose, or because something in its machine is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

About = Literal["activations", "gradients", "sums", "totals"]
LIES: tuple[About, ...] = get_args(About)
LIE = 1 << 90
"""What is added to a sum, or a part of one, that is not what it should be."""


@dataclass(frozen=True, slots=True)
class Lie:
    about: About
    """What it sends to the next stage, to the one before, to who adds up a bucket, or as who adds it up."""
    how_often: float = 1.0
    shy: bool = False
    """Only as long as all replicas of its stage take part: never while it is looked for."""
