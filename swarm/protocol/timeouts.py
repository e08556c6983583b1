"""Deadlines, computed from one step budget and from measurements instead of guessed constants.

A deadline is a multiple of a high quantile of the observed durations. It has a lower and an upper bound, both fractions
of the step budget. Before the first observation, it is the upper bound.
"""

from __future__ import annotations

from collections import deque

from swarm.protocol.stage_needs import ComputeKind, Needs, needs_of

WINDOW = 64
OWN_PACE = 4.0
"""A microbatch may take this multiple of an actor's usual time before the actor counts as stalled."""
_LEAST_SILENCE, _LEAST_STANDSTILL = 1 / 15, 1 / 12
"""Lower bounds of the silence and stall deadlines, as fractions of the step budget."""
_TRIAL_BEATS = 3
"""Lower bound of the stall deadline of a peer on probation, in heartbeats: progress is reported once per heartbeat."""
_SOONEST, _LATEST = 1 / 120, 1 / 20
"""Bounds of the time until something missing is requested for the first time again, as fractions of the step budget."""

LEAST_LINE = 625_000.0
"""Slowest line on which a peer should be able to load any stage while others keep its place or its donor waits for it,
bytes/s (5 Mbit/s).
"""


class Observed:
    """The last `WINDOW` durations of one kind, in seconds."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._ordered: list[float] | None = None
        """The sorted values, cached because deadlines are read much more often than durations are added."""

    def add(self, seconds: float) -> None:
        self._values.append(seconds)
        self._ordered = None

    def quantile(self, q: float) -> float | None:
        if not self._values:
            return None
        if self._ordered is None:
            self._ordered = sorted(self._values)
        return self._ordered[min(len(self._ordered) - 1, int(q * len(self._ordered)))]


def deadline(
    observed: Observed, budget_s: float, *, multiple: float, low: float, high: float, q: float = 0.95
) -> float:
    """Seconds to wait: `multiple` × the `q` quantile, between the fractions `low` and `high` of the step budget."""
    seen = observed.quantile(q)
    if seen is None:
        return budget_s * high
    return min(max(multiple * seen, budget_s * low), budget_s * high)


def silence_deadline(gaps: Observed, budget_s: float, heartbeat_s: float) -> float:
    """Longest silence of a peer in seconds: 3.5 × its usual gap, between a fifteenth and a quarter of the budget."""
    usual = deadline(gaps, budget_s, multiple=3.5, low=_LEAST_SILENCE, high=1 / 4)
    return max(usual, 3 * heartbeat_s)


def shortest_silence(budget_s: float, heartbeat_s: float) -> float:
    """Lower bound of every peer's silence deadline, in seconds."""
    return max(budget_s * _LEAST_SILENCE, 3 * heartbeat_s)


def stall_deadline(
    own_s: float | None, services: Observed, budget_s: float, heartbeat_s: float, fences: int, probed: bool = False
) -> float:
    """Seconds that a peer with available work may take without finishing any. Doubles with each fence of the step, up
    to a cap.

    `own_s`: the seconds that it usually takes for a microbatch; None: other peers' times are used. `probed`: it failed
    before and has at most one microbatch. Continuing without it costs little, so the step budget, which a run of short
    steps need not use up, is no reason to wait for it.
    """
    if own_s is None:
        base = deadline(services, budget_s, multiple=8.0, low=_LEAST_STANDSTILL, high=1 / 2)
    else:
        times, low = OWN_PACE, budget_s * _LEAST_STANDSTILL
        if probed:
            times, low = OWN_PACE / 2, min(low, _TRIAL_BEATS * heartbeat_s)
        base = max(times * own_s + 2 * heartbeat_s, low)
    return min(base * float(2**fences), 4 * budget_s)


def reduce_deadline(durations: Observed, budget_s: float, heartbeat_s: float) -> float:
    """Seconds for which a reduction may stand still. `durations`: those of earlier reductions of one member of it.

    It is several times what a reduction usually takes, because then even a long pause is no accident. Progress is
    reported once per heartbeat.
    """
    usual = deadline(durations, budget_s, multiple=8.0, low=_LEAST_STANDSTILL, high=1 / 3, q=0.5)
    return max(usual, 5 * heartbeat_s)


def want_deadline(waits: Observed, budget_s: float, attempts: int) -> float:
    """Seconds until a frame is requested again. Doubles with each attempt, up to half of the step budget.

    The deadline follows the median of the waiting times. It may be shorter than slow frames need, because a holder that
    has not computed the frame yet says so.
    """
    return _asked_again(deadline(waits, budget_s, multiple=2.0, low=_SOONEST, high=_LATEST, q=0.5), budget_s, attempts)


def part_deadline(pauses: Observed, budget_s: float, attempts: int) -> float:
    """Seconds without any part or sum until the missing ones are requested again. Doubles with each attempt, up to half
    of the step budget.

    `pauses`: the longest pause of each earlier reduction. The deadline is several times the usual one, because a part
    that is requested while it is in transit may be sent twice.
    """
    return _asked_again(deadline(pauses, budget_s, multiple=4.0, low=_SOONEST, high=_LATEST, q=0.5), budget_s, attempts)


def _asked_again(base: float, budget_s: float, attempts: int) -> float:
    return min(base * float(2**attempts), budget_s / 2)


def longest_load_s(needs: Needs, stage: int) -> float:
    """Seconds that the memory of a stage takes on a line of LEAST_LINE. 0 if the needs are unknown."""
    known = needs_of(needs, ComputeKind.HOST_FP32)
    return 0.0 if known is None else known.least[stage] / LEAST_LINE
