"""Forecast: seconds of a step and where they go, from what a microbatch takes at each stage and what lines carry.

The pipeline is that of the event model (pipeline_model.py). What the coordinator and the peers say to each other around
it costs a delay each time; a reduce sends what the dry run counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peers.run.pipeline_model import Pipeline, Work, step_time

MESSAGES = 4
"""That follow one another around the microbatches of a step: token ids, all is summed up, reduce, all is reduced."""
OF_REDUCE = 2
"""Further ones among replicas: parts there, sums back."""
GOOD_EFFICIENCY = 0.9
_FIRST_WINDOW = 10 * 1448
"""Bytes that TCP sends before it has heard anything (RFC 6928)."""
_TIMEOUT_S = 0.2
"""What Linux adds to a round trip, at least, before it takes a packet for lost."""
_MOST_HALVINGS = 32
MOST_MICROBATCHES = 512
"""Of a replica: no larger step is looked for."""


@dataclass(frozen=True, slots=True)
class Line:
    """Of every peer: bytes a second that it sends and receives, and seconds to any other, one way."""

    up: float
    down: float
    delay_s: float

    @property
    def rate(self) -> float:
        """Of a frame between two such lines."""
        return min(self.up, self.down)

    def warming_s(self, nbytes: float, rest_s: float = math.inf) -> float:
        """How much longer a frame takes on a connection that has rested for so long.

        TCP sends a few packets at first, and twice as many after each round trip, until the line is full. What it had
        come to it halves with each timeout of a rest.
        """
        trip = 2 * self.delay_s
        most = min(nbytes, self.rate * trip)
        halvings = math.floor(min(rest_s / (trip + _TIMEOUT_S), _MOST_HALVINGS))
        window = max(most * 0.5**halvings, _FIRST_WINDOW)
        waited, sent = 0.0, window
        while sent < nbytes and window < most:
            waited += trip - window / self.rate  # for leave to send more
            window *= 2
            sent += window
        return waited


@dataclass(frozen=True, slots=True)
class Load:
    """What a step is made of: seconds of a microbatch by stage, bytes of frames and of a reduce."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    forward_frame: float
    backward_frame: float
    reduce_bytes: float = 0.0
    """That a peer sends in a step at most, packed; it receives as much."""
    reduce_s: float = 0.0
    """Seconds to pack, to add up and to apply."""
    zero_bubble: bool = True


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a step."""

    microbatches: int
    """Of a row of one peer each."""
    compute_s: float
    """Of the stage that computes longest."""
    fill_s: float
    """While it waits for the pipeline to fill and to drain."""
    wire_s: float
    """While all wait for frames and messages."""
    reduce_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.fill_s + self.wire_s + self.reduce_s

    @property
    def efficiency(self) -> float:
        """The share of a step in which the slowest stage computes."""
        return self.compute_s / self.step_s


def forecast(load: Load, microbatches: int, replicas: int, line: Line | None) -> Forecast:
    """Of a step with so many microbatches a row and so many replicas of a stage. `line` None: links cost nothing."""
    pipeline = Pipeline(load.forward_s, load.backward_s, load.zero_bubble)
    without = step_time(pipeline, microbatches)
    compute = microbatches * max(f + b for f, b in zip(load.forward_s, load.backward_s, strict=True))
    wire, reduce = 0.0, load.reduce_s
    if line is not None:
        over = replace(
            pipeline,
            forward_frame=load.forward_frame / line.rate,
            backward_frame=load.backward_frame / line.rate,
            delay=line.delay_s,
            after_rest=lambda work, rest: line.warming_s(
                load.forward_frame if work is Work.FORWARD else load.backward_frame, rest
            ),
        )
        wire = step_time(over, microbatches) - without + MESSAGES * line.delay_s
        if replicas > 1:
            reduce += load.reduce_bytes / line.rate + OF_REDUCE * line.delay_s
    return Forecast(microbatches, compute, without - compute, wire, reduce)


def smallest_step(load: Load, replicas: int, line: Line | None) -> Forecast | None:
    """With the fewest microbatches of a replica that reach GOOD_EFFICIENCY. None: MOST_MICROBATCHES do not."""

    def efficient(microbatches: int) -> bool:
        return forecast(load, microbatches, replicas, line).efficiency >= GOOD_EFFICIENCY

    if not efficient(MOST_MICROBATCHES):
        return None
    sizes = range(1, MOST_MICROBATCHES + 1)
    return forecast(load, sizes[bisect_left(sizes, True, key=efficient)], replicas, line)
