"""An event model of a synchronous pipeline: what a schedule reaches if nothing but compute takes time.

`S` stages of one peer each compute `M` microbatches a step. A forward takes one unit, a backward two; the last stage
goes backward at once. A step begins when all microbatches of the one before are in the sums. With replicas it holds for
each row of them, with its own `M`.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from dataclasses import dataclass, field

FORWARD, BACKWARD = 1.0, 2.0
"""Units of a microbatch at one stage."""


class Work(enum.IntEnum):
    """Lower is sooner."""

    BACKWARD = 0
    FORWARD = 1
    WEIGHTS = 2


@dataclass(slots=True)
class _Stage:
    ready: list[tuple[Work, int]] = field(default_factory=list)
    busy: bool = False
    summed: int = 0


def step_units(stages: int, microbatches: int, *, zero_bubble: bool, hop: float = 0.0) -> float:
    """Units from the first forward of a step to the last microbatch in the sums.

    `zero_bubble`: of each backward one unit, the weights' gradients, waits until there is nothing else to do. `hop`:
    units in which a frame crosses a boundary. Peers keep as many microbatches in flight as they like.
    """
    weights = BACKWARD / 2 if zero_bubble else 0.0
    seconds = {Work.FORWARD: FORWARD, Work.BACKWARD: BACKWARD - weights, Work.WEIGHTS: weights}
    pipeline = [_Stage() for _ in range(stages)]
    coming: list[tuple[float, int, int, Work | None, int]] = []
    """(when, number, stage, what has arrived or None: the stage is free, microbatch)"""
    numbers = itertools.count()

    def arrives(at: float, stage: int, work: Work, m: int) -> None:
        heapq.heappush(coming, (at, next(numbers), stage, work, m))

    for m in range(microbatches):
        arrives(0.0, 0, Work.FORWARD, m)
    now = 0.0
    while coming:
        now, _, index, arrived, m = heapq.heappop(coming)
        stage = pipeline[index]
        if arrived is None:
            stage.busy = False
        else:
            heapq.heappush(stage.ready, (arrived, m))
        if coming and coming[0][0] == now and coming[0][2] == index:
            continue  # choose when all that comes at this moment is known
        if stage.busy or not stage.ready:
            continue
        work, m = heapq.heappop(stage.ready)
        turns = work is Work.FORWARD and index == stages - 1
        ends = now + seconds[work] + (seconds[Work.BACKWARD] if turns else 0.0)
        stage.busy = True
        heapq.heappush(coming, (ends, next(numbers), index, None, m))
        if work is Work.FORWARD and not turns:
            arrives(ends + hop, index + 1, Work.FORWARD, m)
        elif work is not Work.WEIGHTS:
            if index:
                arrives(ends + hop, index - 1, Work.BACKWARD, m)
            if weights:
                arrives(ends, index, Work.WEIGHTS, m)
        stage.summed += work is Work.WEIGHTS or (not weights and (turns or work is Work.BACKWARD))
    assert all(stage.summed == microbatches for stage in pipeline)
    return now


def efficiency(stages: int, microbatches: int, *, zero_bubble: bool, hop: float = 0.0) -> float:
    """The share of a step in which a stage computes."""
    return microbatches * (FORWARD + BACKWARD) / step_units(stages, microbatches, zero_bubble=zero_bubble, hop=hop)
