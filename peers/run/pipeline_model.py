"""An event model of a synchronous pipeline: how long a step takes if nothing but compute and links takes time.

`S` stages of one peer each compute `M` microbatches a step; the last stage goes backward at once. A peer sends frame
after frame, in the order in which it made them; each takes `delay` to arrive, and longer after a rest. A step
begins when all microbatches of the one before are in the sums. With replicas it holds for each row of them, with its
own `M`.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FORWARD, BACKWARD = 1.0, 2.0
"""Units of a microbatch at one stage, where only the schedule matters."""


class Work(enum.IntEnum):
    """Lower is sooner."""

    BACKWARD = 0
    FORWARD = 1
    WEIGHTS = 2


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds, or whatever unit one likes, of one microbatch; by stage where there are several numbers."""

    forward: Sequence[float]
    backward: Sequence[float]
    zero_bubble: bool = False
    """Half of each backward, the weights' gradients, waits until there is nothing else to do."""
    forward_frame: float = 0.0
    """How long a line is busy with an activation."""
    backward_frame: float = 0.0
    """How long with a gradient."""
    delay: float = 0.0
    """From one peer to the next."""
    after_rest: Callable[[Work, float], float] = lambda work, rest: 0.0
    """How much longer a frame takes after a line has sent none of its kind for so long."""

    @classmethod
    def even(cls, stages: int, *, zero_bubble: bool, hop: float = 0.0) -> Pipeline:
        """Of equal stages, in units of a forward."""
        return cls((FORWARD,) * stages, (BACKWARD,) * stages, zero_bubble, delay=hop)


@dataclass(slots=True)
class _Stage:
    ready: list[tuple[Work, int]] = field(default_factory=list)
    busy: bool = False
    summed: int = 0
    line_free: float = 0.0
    """When all that it has to send is sent."""
    sent: dict[Work, tuple[float, float]] = field(default_factory=dict)
    """When its last frame of a kind was sent, and when it arrives: none overtakes another."""


def step_time(pipeline: Pipeline, microbatches: int) -> float:
    """Return the time from the first forward of a step to the last microbatch in the sums.

    Peers keep as many microbatches in flight as they like.
    """
    stages = [_Stage() for _ in pipeline.forward]
    coming: list[tuple[float, int, int, Work | None, int]] = []
    """(when, number, stage, what has arrived or None: the stage is free, microbatch)"""
    numbers = itertools.count()

    def arrives(at: float, stage: int, work: Work, m: int) -> None:
        heapq.heappush(coming, (at, next(numbers), stage, work, m))

    def send(at: float, stage: int, to: int, work: Work, m: int) -> None:
        sender = stages[stage]
        takes = pipeline.forward_frame if work is Work.FORWARD else pipeline.backward_frame
        begins = max(at, sender.line_free)
        sent, arrived = sender.sent.get(work, (-math.inf, 0.0))
        sender.line_free = begins + takes
        there = max(arrived, sender.line_free + pipeline.delay + pipeline.after_rest(work, begins - sent))
        sender.sent[work] = sender.line_free, there
        arrives(there, to, work, m)

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
            continue  # choose when all that comes at this moment is known
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
    """Units of a step of equal stages. `hop`: units in which a frame crosses a boundary."""
    return step_time(Pipeline.even(stages, zero_bubble=zero_bubble, hop=hop), microbatches)


def efficiency(stages: int, microbatches: int, *, zero_bubble: bool, hop: float = 0.0) -> float:
    """The share of a step in which a stage computes."""
    return microbatches * (FORWARD + BACKWARD) / step_units(stages, microbatches, zero_bubble=zero_bubble, hop=hop)
