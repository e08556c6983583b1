"""An event model of a synchronous pipeline: how long a step takes if only compute and links take time.

`S` stages of one peer each compute `M` microbatches a step. The last stage runs a backward right after its forward. A
peer sends its frames one after another, in the order in which it made them. Each frame takes `delay` to arrive. A step
begins when all microbatches of the previous step are in the sums. With replicas, the model describes each row of peers,
with the row's own `M`.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

FORWARD, BACKWARD = 1.0, 2.0
"""Units of time of a microbatch at one stage, for models in which only the schedule matters."""


class Work(enum.IntEnum):
    """Kinds of work; the lowest has the highest priority."""

    BACKWARD = 0
    FORWARD = 1
    WEIGHTS = 2


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The times of one microbatch, in seconds or any other unit; by stage where there are several numbers."""

    forward: Sequence[float]
    backward: Sequence[float]
    zero_bubble: bool = False
    """True if half of each backward (the gradients of the weights) waits until there is nothing else to do."""
    forward_frame: float = 0.0
    """How long an activation occupies a link."""
    backward_frame: float = 0.0
    """How long a gradient occupies a link."""
    delay: float = 0.0
    """The delay from one peer to the next."""

    @classmethod
    def even(cls, stages: int, *, zero_bubble: bool, hop: float = 0.0) -> Pipeline:
        """A pipeline of equal stages, in units of a forward."""
        return cls((FORWARD,) * stages, (BACKWARD,) * stages, zero_bubble, delay=hop)


@dataclass(slots=True)
class _Stage:
    ready: list[tuple[Work, int]] = field(default_factory=list)
    busy: bool = False
    summed: int = 0
    line_free: float = 0.0
    """The time at which all queued frames have been sent."""


def step_time(pipeline: Pipeline, microbatches: int) -> float:
    """Return the time from the first forward of a step to the last microbatch in the sums.

    The number of microbatches in flight is not limited.
    """
    stages = [_Stage() for _ in pipeline.forward]
    coming: list[tuple[float, int, int, Work | None, int]] = []
    """(time, number, stage, the arriving work or None: the stage becomes free, microbatch)"""
    numbers = itertools.count()

    def arrives(at: float, stage: int, work: Work, m: int) -> None:
        heapq.heappush(coming, (at, next(numbers), stage, work, m))

    def send(at: float, stage: int, to: int, work: Work, m: int) -> None:
        sender = stages[stage]
        takes = pipeline.forward_frame if work is Work.FORWARD else pipeline.backward_frame
        sender.line_free = max(at, sender.line_free) + takes
        arrives(sender.line_free + pipeline.delay, to, work, m)

    for m in range(microbatches):
        arrives(0.0, 0, Work.FORWARD, m)
    now = 0.0
    while coming:
        now, _, index, arrived, m = heapq.heappop(coming)
        stage = stages[index]
        if arrived is None:
            stage.busy = False
        else:
            heapq.heappush(stage.ready, (arrived, m))
        if coming and coming[0][0] == now and coming[0][2] == index:
            continue  # choose only when all events of this moment are processed
        if stage.busy or not stage.ready:
            continue
        work, m = heapq.heappop(stage.ready)
        turns = work is Work.FORWARD and index == len(stages) - 1
        weights = pipeline.backward[index] / 2 if pipeline.zero_bubble else 0.0
        back = pipeline.backward[index] - weights
        takes = {Work.FORWARD: pipeline.forward[index], Work.BACKWARD: back, Work.WEIGHTS: weights}[work]
        ends = now + takes + (back if turns else 0.0)
        stage.busy = True
        heapq.heappush(coming, (ends, next(numbers), index, None, m))
        if work is Work.FORWARD and not turns:
            send(ends, index, index + 1, Work.FORWARD, m)
        elif work is not Work.WEIGHTS:
            if index:
                send(ends, index, index - 1, Work.BACKWARD, m)
            if weights:
                arrives(ends, index, Work.WEIGHTS, m)
        stage.summed += work is Work.WEIGHTS or (not weights and (turns or work is Work.BACKWARD))
    assert all(stage.summed == microbatches for stage in stages)
    return now


def step_units(stages: int, microbatches: int, *, zero_bubble: bool, hop: float = 0.0) -> float:
    """The units of a step with equal stages. `hop`: units in which a frame crosses a boundary."""
    return step_time(Pipeline.even(stages, zero_bubble=zero_bubble, hop=hop), microbatches)


def efficiency(stages: int, microbatches: int, *, zero_bubble: bool, hop: float = 0.0) -> float:
    """The fraction of a step in which a stage computes."""
    return microbatches * (FORWARD + BACKWARD) / step_units(stages, microbatches, zero_bubble=zero_bubble, hop=hop)
