"""The least pace: how long a microbatch takes at least, for rehearsals of slower machines. No torch here."""

from __future__ import annotations

import time
from dataclasses import dataclass

MOST_S = 600.0
_SLICE_S = 0.01
_STOPPED_S = 0.03
"""A slice that took longer was not slept: the process stood still."""


@dataclass(frozen=True, slots=True)
class LeastPace:
    """The least seconds of one microbatch's forward and backward through a stage, at most `MOST_S`.

    0: as fast as the machine can. Raises ValueError for others.
    """

    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        for seconds in (self.forward_s, self.backward_s):
            if not 0.0 <= seconds <= MOST_S:
                raise ValueError(f"{seconds:g} s for a forward or backward: from 0 to {MOST_S:g}")

    def capacity(self, stages: int) -> float:
        """Microbatches a second through a whole model of so many stages."""
        return 1.0 / max(stages * (self.forward_s + self.backward_s), 1e-9)


def wait(seconds: float) -> None:
    """Sleep. A stopped process (SIGSTOP) does not get on with it."""
    while seconds > 1e-6:
        asked = min(seconds, _SLICE_S)
        began = time.perf_counter()
        time.sleep(asked)
        passed = time.perf_counter() - began
        seconds -= passed if passed < _STOPPED_S else asked
