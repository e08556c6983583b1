"""How fast this peer computes: what the coordinator weighs it by."""

from __future__ import annotations

SUDDENLY = 2.0
"""Who takes so many times as long as before is as slow as that from now on: an average would have it lag behind."""


class Pace:
    """Seconds per microbatch, forward and backward: of the pass so far, else the moving average over passes."""

    def __init__(self) -> None:
        self._average: float | None = None
        self._busy_s = 0.0
        self._backwards = 0
        self._stage: int | None = None

    def forward(self, seconds: float) -> None:
        self._busy_s += seconds

    def backward(self, seconds: float) -> None:
        self._busy_s += seconds
        self._backwards += 1

    def new_pass(self, stage: int) -> None:
        """What was measured in another stage says nothing of this one."""
        if stage != self._stage:
            self._average, self._backwards = None, 0
        self._stage = stage
        if self._backwards:
            measured = self._busy_s / self._backwards
            if self._average is None or measured > SUDDENLY * self._average:
                self._average = measured
            else:
                self._average = 0.5 * (self._average + measured)
        self._busy_s, self._backwards = 0.0, 0

    @property
    def seconds_per_microbatch(self) -> float | None:
        return self._busy_s / self._backwards if self._backwards > 1 else self._average
