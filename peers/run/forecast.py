"""Forecast: how long a step takes and where the time goes, from the microbatch times of the stages and the rates of
the links.

The pipeline is that of the event model (pipeline_model.py). Each message between coordinator and peers outside the
pipeline costs one delay. A reduction sends the bytes that the dry run counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peers.run.pipeline_model import Pipeline, Work, step_time

MESSAGES = 4
"""The number of consecutive messages outside the microbatches of a step: token ids, all is accumulated, reduce, all is
reduced.
"""
OF_REDUCE = 2
"""The number of additional messages among replicas: parts, then sums."""
GOOD_EFFICIENCY = 0.9
_FIRST_WINDOW = 10 * 1448
"""Bytes that TCP sends before the first acknowledgement (RFC 6928)."""
_TIMEOUT_S = 0.2
"""The minimum that Linux adds to the round trip before it considers a packet lost."""
_MOST_HALVINGS = 32
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

    def warming_s(self, nbytes: float, rest_s: float = math.inf) -> float:
        """Additional seconds for a frame on a connection that was idle for `rest_s`.

        TCP sends a few packets at first, and twice as many after each round trip, until the link is full. During an
        idle period, each timeout halves that amount (RFC 2861; Linux does so with CUBIC and Reno, not with BBR, and not
        with `net.ipv4.tcp_slow_start_after_idle = 0`).
        """
        trip = 2 * self.delay_s
        most = min(nbytes, self.rate * trip)
        halvings = math.floor(min(rest_s / (trip + _TIMEOUT_S), _MOST_HALVINGS))
        window = max(most * 0.5**halvings, _FIRST_WINDOW)
        waited, sent = 0.0, window
        while sent < nbytes and window < most:
            waited += trip - window / self.rate  # waits for acknowledgements
            window *= 2
            sent += window
        return waited


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
    restarts_s: float = 0.0
    """The part of the two before in which connections that were idle send slowly at first (`Line.warming_s`)."""

    @property
    def step_s(self) -> float:
        return self.compute_s + self.fill_s + self.wire_s + self.reduce_s

    @property
    def efficiency(self) -> float:
        """The fraction of a step in which the slowest stage computes."""
        return self.compute_s / self.step_s


def forecast(load: Load, microbatches: int, replicas: int, line: Line | None) -> Forecast:
    """Forecast a step with `microbatches` per row and `replicas` of each stage. `line` None: links take no time."""
    found = _forecast(load, microbatches, replicas, line)
    warm = _forecast(load, microbatches, replicas, line, warm=True)
    return replace(found, restarts_s=found.step_s - warm.step_s)


def _forecast(load: Load, microbatches: int, replicas: int, line: Line | None, *, warm: bool = False) -> Forecast:
    """As `forecast`, without `restarts_s`. `warm`: as if connections kept their rate while they are idle."""
    pipeline = Pipeline(load.forward_s, load.backward_s, load.zero_bubble)
    without = step_time(pipeline, microbatches)
    compute = microbatches * max(f + b for f, b in zip(load.forward_s, load.backward_s, strict=True))
    wire, reduce = 0.0, load.reduce_s
    if line is not None:

        def warming_s(nbytes: float, rest_s: float = math.inf) -> float:
            return 0.0 if warm else line.warming_s(nbytes, rest_s)

        over = replace(
            pipeline,
            forward_frame=load.forward_frame / line.rate,
            backward_frame=load.backward_frame / line.rate,
            delay=line.delay_s,
            after_rest=lambda work, rest: warming_s(
                load.forward_frame if work is Work.FORWARD else load.backward_frame, rest
            ),
        )
        wire = step_time(over, microbatches) - without + MESSAGES * line.delay_s
        if replicas > 1:
            reduce += load.reduce_bytes / line.rate + warming_s(load.reduce_bytes) + OF_REDUCE * line.delay_s
    return Forecast(microbatches, compute, without - compute, wire, reduce)


def smallest_step(load: Load, replicas: int, line: Line | None) -> Forecast | None:
    """The forecast with the fewest microbatches per replica that reaches GOOD_EFFICIENCY. None: even
    MOST_MICROBATCHES do not reach it.
    """

    def efficient(microbatches: int) -> bool:
        return _forecast(load, microbatches, replicas, line).efficiency >= GOOD_EFFICIENCY

    if not efficient(MOST_MICROBATCHES):
        return None
    sizes = range(1, MOST_MICROBATCHES + 1)
    return forecast(load, sizes[bisect_left(sizes, True, key=efficient)], replicas, line)
