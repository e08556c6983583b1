"""The answers of the stages of a step: what their reductions gave, and what each peer contributed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarm.protocol import sketch
from swarm.protocol.ids import Actor

APART = 5.0
"""Two gradients count as alike if their distance is at most this multiple of tolerance × length.

The distance exceeds the difference of the lengths, because rounding errors of different machines point in random
directions.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a stage's reduction in one attempt."""

    digest: str
    squared_norm: float
    outline: bytes = b""
    """The same as `Prepared.outline`."""
    adds_up: bool = True
    """True if the sketches of the contributions add up to the sketch of the sum. If not, a peer has reported a false
    sketch.
    """
    loss_sum: float = 0.0
    """The loss of the step, summed over its targets; 0 except in the last stage."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.squared_norm)

    def is_like(self, other: Answer, tolerance: float) -> bool:
        """Return True if both may be the same gradient. `tolerance`: the largest relative difference of the lengths."""
        if self.adds_up != other.adds_up:
            return False
        if not (self.finite and other.finite):
            return self.finite == other.finite
        if self.digest == other.digest:
            # a person who is alone in a half may report any norm and loss for the same bytes
            return (self.squared_norm, self.loss_sum) == (other.squared_norm, other.loss_sum)
        one, two = math.sqrt(max(0.0, self.squared_norm)), math.sqrt(max(0.0, other.squared_norm))
        near = _near(one, two, tolerance) and _near(self.loss_sum, other.loss_sum, tolerance)
        return near and self._is_near(other, tolerance)

    def _is_near(self, other: Answer, tolerance: float) -> bool:
        """Return True if both gradients point in about the same direction, according to their outlines."""
        one, two = sketch.read(self.outline), sketch.read(other.outline)
        if one is None or two is None:
            return tolerance > 0.0 and one is two
        apart = [a - b for a, b in zip(one, two, strict=True)]
        return sketch.length(apart) <= APART * tolerance * max(sketch.length(one), sketch.length(two))


def _near(one: float, two: float, tolerance: float) -> bool:
    return abs(one - two) <= tolerance * max(abs(one), abs(two))


Answers = tuple[Answer, ...]
"""One answer per stage."""


@dataclass(frozen=True, slots=True)
class OwnSums:
    """The gradient that one peer contributed to its stage's sums."""

    actor: Actor
    microbatches: int
    sketch: sketch.Sketch
    told: bytes = field(default=b"", repr=False)
    """All sketches that the peer reported (`Prepared.sketch`)."""
