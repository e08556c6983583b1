"""Whose contributions are unlike those of others: a first look at each step, which costs next to nothing.

Peers tell sketches of what they have added (`Prepared.sketch`). Each is compared with the sum of its siblings': its
length, and the angle between them; and its length with what contributions to its stage were like in the last steps.
What is usual is learned from the run itself, as its median and quartiles over steps, as SENTINEL does (arXiv
2603.03592): who is several quartile ranges away is doubted. That proves nothing. So nobody is accused for it: the step
is computed again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, quantiles
from typing import Literal

from swarm.protocol.coordinator.passes.pass_state import OwnSums
from swarm.protocol.ids import Actor
from swarm.protocol.sketch import added, dot, length

RANGES = {"size": 5.0, "direction": 4.0, "growth": 8.0}
"""Quartile ranges beyond the quartiles at which a peer is doubted. Some batches are much longer than others, to all."""
KNOWN = 24
"""Values, of contributions to a stage, from which on it is known what is usual there."""
REMEMBERED = 192
NARROWEST = {"size": 0.15, "direction": 0.2, "growth": 0.15}
"""Quartile range at least: a sketch of 64 numbers is no more exact than that."""
BOUND = 16.0
"""Times as long as a microbatch of its siblings: doubted even where nothing is known yet."""
GROWTH = 0.75
"""A sum of n gradients is between n^0.5 and n times as long as one: if they have nothing in common, or all."""
LASTING = 64
"""Steps over which a peer's sums may point against its siblings' by chance. A changed sign shows in no single one."""
DEVIATIONS = 4.0
"""Below 0, at which the mean of so many angles is doubted."""
_OF_RANGE = 1.35
"""Standard deviations between the quartiles of a normal distribution."""
_SHORTEST = 0.5
"""As what a sum of zeros counts: others are 1 or longer."""


@dataclass(frozen=True, slots=True)
class Doubt:
    stage: int
    actor: Actor
    what: Literal["long", "elsewhere", "short"]
    reason: str
    beyond: float
    """How far: to be compared with that of doubts of its kind."""


Measured = tuple[tuple[str, float], ...]
"""Of one contribution: what, and how much."""


class Screen:
    """`doubts` of a step that is ready to be decided; `decided` when it is, with what was measured."""

    def __init__(self) -> None:
        self._usual: dict[tuple[int, str], deque[float]] = {}
        self._angles: dict[tuple[int, Actor], deque[float]] = {}
        """By stage and peer, of its last steps."""

    def forget(self) -> None:
        """The history goes on from another version."""
        self._usual.clear()
        self._angles.clear()

    def decided(self, step: Sequence[Sequence[OwnSums]]) -> None:
        """`step`: by stage. What it was like is usual from now on."""
        for stage, contributions in enumerate(step):
            for actor, measured in _measure(contributions):
                for what, value in measured:
                    if what == "direction":
                        self._angles.setdefault((stage, actor), deque(maxlen=LASTING)).append(value)
                    self._usual.setdefault((stage, what), deque(maxlen=REMEMBERED)).append(value)

    def doubts(self, step: Sequence[Sequence[OwnSums]]) -> list[Doubt]:
        """Whose sums are too unlike others' to be believed at once: the most unlike first. `step`: by stage."""
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
        """An audit without them came out the same: what they did in the last steps is not held against them."""
        self._angles = {key: angles for key, angles in self._angles.items() if key[1].peer not in peers}

    def _lasting(self, stage: int, actor: Actor) -> list[Doubt]:
        """Whether its sums have pointed against its siblings' on average, for longer than chance would have it."""
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
        """Between which values nobody is doubted."""
        bound = math.log(BOUND) if what == "size" else math.inf
        usual = self._usual.get((stage, what), ())
        if len(usual) < KNOWN:
            return -math.inf, bound
        first, _, third = quantiles(usual, n=4)
        reach = RANGES[what] * max(third - first, NARROWEST[what])
        low = -math.inf if what == "growth" else first - reach
        return low, math.inf if what == "direction" else third + min(reach, bound)


def _measure(contributions: Sequence[OwnSums]) -> list[tuple[Actor, Measured]]:
    """`growth`: the logarithm of how long it is for a microbatch; `size`: the same, beside its siblings' upper median;
    `direction`: the angle to the sum of its siblings, as the inverse hyperbolic tangent of its cosine.
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
        reason = f"the sums of {actor} point elsewhere than its siblings': the cosine is {math.tanh(value):.2f}"
        return Doubt(stage, actor, "elsewhere", f"{reason}, usually {math.tanh(low):.2f} or more", low - value)
    those = "its siblings'" if what == "size" else "those of the last steps"
    if value > high:
        reason = (
            f"the sums of {actor} are {math.exp(value - high):.3g} times as long as is usual at most beside {those}"
        )
        return Doubt(stage, actor, "long", reason, value - high)
    reason = f"the sums of {actor} are {math.exp(value - low):.3g} times as long as is usual at least beside {those}"
    return Doubt(stage, actor, "short", reason, low - value)
