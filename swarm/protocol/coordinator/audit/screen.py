"""The screen finds contributions that are unlike those of siblings. It looks at each step and costs almost nothing.

Peers report sketches of their contributions (`Prepared.sketch`). The screen compares the length of each sketch with the
siblings' lengths and with earlier contributions to the same stage, and measures the angle to the sum of the siblings'
sketches. As in SENTINEL (arXiv 2603.03592), it learns from the run itself what is usual: the median and quartiles over
steps. A peer that is several quartile ranges away is doubted. A doubt proves nothing, so the coordinator accuses no
peer: the step is computed again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, quantiles
from typing import Literal

from swarm.protocol.coordinator.passes.answer import OwnSums
from swarm.protocol.ids import Actor
from swarm.protocol.sketch import added, dot, length

RANGES = {"size": 5.0, "direction": 4.0, "growth": 8.0}
"""A contribution is doubted if one of its values is this number of interquartile ranges outside the quartiles.

`growth` allows more, because some batches give all peers much longer gradients.
"""
KNOWN = 24
"""Number of values from contributions to a stage after which the screen knows what is usual there."""
REMEMBERED = 192
NARROWEST = {"size": 0.15, "direction": 0.2, "growth": 0.15}
"""Lower bound of the quartile range: a sketch of 64 numbers is no more precise."""
BOUND = 16.0
"""A contribution per microbatch that exceeds its siblings' by this factor is doubted even if nothing is known yet."""
GROWTH = 0.75
"""The assumed exponent with which the length of a sum grows with its number of gradients.

It is between 0.5 (unrelated gradients) and 1 (equal gradients).
"""
LASTING = 64
"""Number of steps over which the angles are averaged. A reversed sign is not visible in a single step."""
DEVIATIONS = 4.0
"""The mean angle is doubted if it is this number of standard deviations below 0."""
_OF_RANGE = 1.35
"""Number of standard deviations between the quartiles of a normal distribution."""
_SHORTEST = 0.5
"""The length that is assumed for a sum of zeros. All other sums have length 1 or more."""


@dataclass(frozen=True, slots=True)
class Doubt:
    stage: int
    actor: Actor
    what: Literal["long", "elsewhere", "short"]
    reason: str
    beyond: float
    """How far the value is outside its limits. Two values can be compared only if `what` is the same."""


Measured = tuple[tuple[str, float], ...]
"""The measurements of one contribution: (kind, value) pairs."""


class Screen:
    """Call `doubts` for a step that is ready to be decided, and `decided` with its sums once it is."""

    def __init__(self) -> None:
        self._usual: dict[tuple[int, str], deque[float]] = {}
        self._angles: dict[tuple[int, Actor], deque[float]] = {}
        """For each stage and peer, the angles of its last steps."""

    def forget(self) -> None:
        """The run has gone back to an earlier version: forget all measurements."""
        self._usual.clear()
        self._angles.clear()

    def decided(self, step: Sequence[Sequence[OwnSums]]) -> None:
        """Add the measurements of a decided step to what counts as usual. `step`: the sums by stage."""
        for stage, contributions in enumerate(step):
            for actor, measured in _measure(contributions):
                for what, value in measured:
                    if what == "direction":
                        self._angles.setdefault((stage, actor), deque(maxlen=LASTING)).append(value)
                    self._usual.setdefault((stage, what), deque(maxlen=REMEMBERED)).append(value)

    def doubts(self, step: Sequence[Sequence[OwnSums]]) -> list[Doubt]:
        """Return the contributions that are too unlike their siblings', the most unlike first. `step`: the sums by
        stage.
        """
        found = []
        for stage, contributions in enumerate(step):
            limits = {what: self._limits(stage, what) for what in NARROWEST}
            for actor, measured in _measure(contributions):
                for what, value in measured:
                    low, high = limits[what]
                    if not low <= value <= high:
                        found.append(_doubt(stage, actor, what, value, low, high))
                        break
                else:
                    found += self._lasting(stage, actor)
        return sorted(found, key=lambda doubt: (("long", "elsewhere", "short").index(doubt.what), -doubt.beyond))

    def believe(self, peers: Collection[str]) -> None:
        """An audit without these peers gave the same result. Forget the angles that were measured in their last
        steps.
        """
        self._angles = {key: angles for key, angles in self._angles.items() if key[1].peer not in peers}

    def _lasting(self, stage: int, actor: Actor) -> list[Doubt]:
        """Return a doubt if the actor's sums have pointed against its siblings' for longer than chance explains."""
        angles, usual = self._angles.get((stage, actor), ()), self._usual.get((stage, "direction"), ())
        if len(angles) < LASTING or len(usual) < KNOWN:
            return []
        first, _, third = quantiles(usual, n=4)
        reach = DEVIATIONS * (third - first) / _OF_RANGE / math.sqrt(LASTING)
        if (average := fmean(angles)) >= -reach:
            return []
        reason = f"the sums of {actor} point against its siblings' in the last {LASTING} steps: the cosine is"
        return [Doubt(stage, actor, "elsewhere", f"{reason} {math.tanh(average):.2f} on average", -reach - average)]

    def _limits(self, stage: int, what: str) -> tuple[float, float]:
        """The limits between which a value is not doubted."""
        bound = math.log(BOUND) if what == "size" else math.inf
        usual = self._usual.get((stage, what), ())
        if len(usual) < KNOWN:
            return -math.inf, bound
        first, _, third = quantiles(usual, n=4)
        reach = RANGES[what] * max(third - first, NARROWEST[what])
        low = -math.inf if what == "growth" else first - reach
        return low, math.inf if what == "direction" else third + min(reach, bound)


def _measure(contributions: Sequence[OwnSums]) -> list[tuple[Actor, Measured]]:
    """Measure each contribution. There are three kinds of values:

    * `growth`: the logarithm of its length per microbatch.
    * `size`: the same, relative to the upper median of its siblings.
    * `direction`: the angle to the sum of its siblings, as the inverse hyperbolic tangent of its cosine.
    """
    everything, found = added(each.sketch for each in contributions), []
    lengths = [length(each.sketch) for each in contributions]
    growths = [
        math.log(max(_SHORTEST, long)) - GROWTH * math.log(each.microbatches)
        for long, each in zip(lengths, contributions, strict=True)
    ]
    for place, each in enumerate(contributions):
        rest = [whole - part for whole, part in zip(everything, each.sketch, strict=True)]
        mine, others, measured = lengths[place], length(rest), []
        if siblings := growths[:place] + growths[place + 1 :]:
            measured.append(("size", growths[place] - median_high(siblings)))
        if mine and others:
            cosine = dot(each.sketch, rest) / mine / others
            measured.append(("direction", math.atanh(max(-0.999, min(0.999, cosine)))))
        if mine:
            measured.append(("growth", growths[place]))
        found.append((each.actor, tuple(measured)))
    return found


def _doubt(stage: int, actor: Actor, what: str, value: float, low: float, high: float) -> Doubt:
    if what == "direction":
        reason = (
            f"the sums of {actor} point in another direction than its siblings': the cosine is {math.tanh(value):.2f}"
        )
        return Doubt(stage, actor, "elsewhere", f"{reason}, usually {math.tanh(low):.2f} or more", low - value)
    those = "its siblings'" if what == "size" else "those of the last steps"
    if value > high:
        reason = (
            f"the sums of {actor} are {math.exp(value - high):.3g} times as long as the usual maximum, "
            f"compared with {those}"
        )
        return Doubt(stage, actor, "long", reason, value - high)
    reason = (
        f"the sums of {actor} are {math.exp(value - low):.3g} times as long as the usual minimum, compared with {those}"
    )
    return Doubt(stage, actor, "short", reason, low - value)
