"""The least pace: a minimum time per microbatch, to emulate slower machines. This file does not import torch."""

from __future__ import annotations

import time
from dataclasses import dataclass

MOST_S = 600.0
_SLICE_S = 0.01
_STOPPED_S = 0.03
"""A sleep of one slice that takes longer than this means that the process was stopped meanwhile."""


@dataclass(frozen=True, slots=True)
class LeastPace:
    """Minimum seconds of a microbatch's forward and of its backward in a stage, from 0 (no minimum) to `MOST_S`.

    Raises ValueError for other values.
    """

    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        for seconds in (self.forward_s, self.backward_s):
            if not 0.0 <= seconds <= MOST_S:
                raise ValueError(f"{seconds:g} s for a forward or backward is out of range: 0 to {MOST_S:g}")

    def capacity(self, stages: int) -> float:
        """Microbatches/s through a whole model with this number of stages."""
        return 1.0 / max(stages * (self.forward_s + self.backward_s), 1e-9)


def wait(seconds: float) -> None:
    """Sleep. Time in which the process is stopped (SIGSTOP) does not count."""
    while seconds > 1e-6:
        asked = min(seconds, _SLICE_S)
        began = time.perf_counter()
        time.sleep(asked)
        passed = time.perf_counter() - began
        seconds -= passed if passed < _STOPPED_S else asked
