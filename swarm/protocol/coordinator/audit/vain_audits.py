"""Audits in vain: sketches that did not add up although the step was right, and no culprit was found.

A peer may report a false sketch in the first attempt at each step only. A search does not find it, and each step would
be computed many times. So after each audit in vain, the sketches of the stage start no audit for some steps: twice as
many each time. Meanwhile, the steps that are drawn at random are audited as ever.
"""

from __future__ import annotations

from collections.abc import Collection

MOST_DOUBLINGS = 10


class VainAudits:
    """Counts them for each stage."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._not_before: dict[int, int] = {}
        """For each stage, the first step in which its sketches may start an audit again."""

    def add(self, stages: Collection[int], step: int) -> None:
        """The sketches of these stages have started an audit of `step` in vain."""
        for stage in stages:
            times = self._times[stage] = min(self._times.get(stage, 0) + 1, MOST_DOUBLINGS)
            self._not_before[stage] = step + 1 + 2**times

    def clear(self) -> None:
        """A culprit was found."""
        self._times.clear()
        self._not_before.clear()

    def may_audit(self, stage: int, step: int) -> bool:
        return step >= self._not_before.get(stage, 0)

    def rolled_back(self) -> None:
        """The run goes back: the numbers of steps mean other steps from now on."""
        self._not_before.clear()
