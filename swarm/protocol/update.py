"""The numbers of an optimizer step on which machines could disagree, because each library has its own `cos` and `pow`.

The coordinator computes them once, and the decision contains them for all peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.manifest import OptimizerSection


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's numbers for one AdamW step."""

    learning_rate: float = 0.0
    bias1: float = 1.0
    """Divisor of the first moment: 1 − beta1^(step + 1)."""
    bias2: float = 1.0
    """Divisor of the second moment: 1 − beta2^(step + 1)."""

    @property
    def sound(self) -> bool:
        """True if an optimizer step is possible with these numbers."""
        return 0.0 <= self.learning_rate < math.inf and 0.0 < self.bias1 <= 1.0 and 0.0 < self.bias2 <= 1.0


STILL = Update()
"""An update that changes no parameter. It is used for a skipped step."""


def update_of(section: OptimizerSection, step: int, steps: int, rate: float = 1.0) -> Update:
    """The numbers of step `step` of `steps`. They depend only on the step's number, not on skipped steps before it.

    `rate`: the organiser's factor for the schedule.
    """
    return Update(
        rate * learning_rate(section, step, steps), 1.0 - section.beta1 ** (step + 1), 1.0 - section.beta2 ** (step + 1)
    )


def learning_rate(section: OptimizerSection, step: int, steps: int) -> float:
    """The learning rate of a step: linear warm-up, then a cosine to `min_ratio` of the peak, then constant."""
    if step < section.warmup_steps:
        return section.learning_rate * (step + 1) / section.warmup_steps
    progress = min(1.0, (step - section.warmup_steps) / max(1, steps - section.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.learning_rate * (section.min_ratio + (1.0 - section.min_ratio) * cosine)
