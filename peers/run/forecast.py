"""Forecast: how long a step takes and where the time goes, from the microbatch times of the stages and the rates of
the links.

The pipeline is that of the event model (pipeline_model.py). Each message between coordinator and peers outside the
pipeline costs one delay. A reduction sends the bytes that the dry run counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peers.run.pipeline_model import Pipeline, step_time

MESSAGES = 4
"""The number of consecutive messages outside the microbatches of a step: token ids, all is accumulated, reduce, all is
reduced.
"""
OF_REDUCE = 2
"""The number of additional messages among replicas: parts, then sums."""
GOOD_EFFICIENCY = 0.9
MOST_MICROBATCHES = 512
"""The largest number of microbatches per replica that is considered."""


@dataclass(frozen=True, slots=True)
class Line:
    """The link of every peer: bytes per second down and up, and the one-way delay in seconds to any other peer."""

    up: float
    down: float
    delay_s: float

    @property
    def rate(self) -> float:
        """The rate of a frame between two such links, in bytes per second."""
        return min(self.up, self.down)


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a step: seconds of a microbatch by stage, bytes of frames, and the reduction."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    forward_frame: float
    backward_frame: float
    reduce_bytes: float = 0.0
    """The most bytes that a peer sends in the reduction of a step, packed; it receives the same amount."""
    reduce_s: float = 0.0
    """Seconds to pack, sum and apply."""
    zero_bubble: bool = True


@dataclass(frozen=True, slots=True)
class Forecast:
    """The duration of a step, and its parts, in seconds."""

    microbatches: int
    """Microbatches per row, a row having one peer of each stage."""
    compute_s: float
    """Computing time of the slowest stage."""
    fill_s: float
    """Time in which that stage waits for the pipeline to fill and to drain."""
    wire_s: float
    """Time in which all peers wait for frames and messages."""
    reduce_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.fill_s + self.wire_s + self.reduce_s

    @property
    def efficiency(self) -> float:
        """The fraction of a step in which the slowest stage computes."""
        return self.compute_s / self.step_s


def forecast(load: Load, microbatches: int, replicas: int, line: Line | None) -> Forecast:
    """Forecast a step with `microbatches` per row and `replicas` of each stage. `line` None: links take no time."""
    pipeline = Pipeline(load.forward_s, load.backward_s, load.zero_bubble)
    without = step_time(pipeline, microbatches)
    compute = microbatches * max(f + b for f, b in zip(load.forward_s, load.backward_s, strict=True))
    wire = 0.0
    if line is not None:
        over = replace(
            pipeline,
            forward_frame=load.forward_frame / line.rate,
            backward_frame=load.backward_frame / line.rate,
            delay=line.delay_s,
        )
        wire = step_time(over, microbatches) - without + MESSAGES * line.delay_s
    reduce = reduction_s(load.reduce_s, load.reduce_bytes, replicas, line)
    return Forecast(microbatches, compute, without - compute, wire, reduce)


def reduction_s(compute_s: float, sent: float, replicas: int, line: Line | None) -> float:
    """Seconds of a reduction that computes for `compute_s` seconds, and in which a peer sends `sent` bytes."""
    if line is None or replicas == 1:
        return compute_s
    return compute_s + sent / line.rate + OF_REDUCE * line.delay_s


def smallest_step(load: Load, replicas: int, line: Line | None) -> Forecast | None:
    """The forecast with the fewest microbatches per replica that reaches GOOD_EFFICIENCY. None: even
    MOST_MICROBATCHES do not reach it.
    """

    def efficient(microbatches: int) -> bool:
        return forecast(load, microbatches, replicas, line).efficiency >= GOOD_EFFICIENCY

    if not efficient(MOST_MICROBATCHES):
        return None
    sizes = range(1, MOST_MICROBATCHES + 1)
    return forecast(load, sizes[bisect_left(sizes, True, key=efficient)], replicas, line)
