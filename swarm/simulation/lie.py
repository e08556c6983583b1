"""A peer whose numbers look sound and are wrong: on purpose, or because something in its machine is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LIES = ("activations", "gradients", "sums", "totals")


@dataclass(frozen=True, slots=True)
class Lie:
    about: Literal["activations", "gradients", "sums", "totals"]
    """What it sends to the next stage, to the one before, to who adds up a bucket, or as who adds it up."""
    how_often: float = 1.0
