"""Deadlines: derived from one step budget and from what was measured, never a guessed constant.

A deadline is a multiple of a high quantile of what was observed, held between two fractions of the step budget. While
nothing has been observed it is the upper fraction.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64
OWN_PACE = 4.0
"""How many times as long as usual with it a microbatch may take before an actor counts as stalled."""
_LEAST_SILENCE, _LEAST_STANDSTILL = 1 / 15, 1 / 12
"""Of the step budget."""


class Observed:
    """The last `WINDOW` durations of one kind, seconds."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._ordered: list[float] | None = None
        """The values in order. Deadlines are looked at much more often than they move."""

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
    """Seconds to wait: `multiple` × the `q` quantile, between `low` and `high` fractions of the step budget."""
    seen = observed.quantile(q)
    if seen is None:
        return budget_s * high
    return min(max(multiple * seen, budget_s * low), budget_s * high)


def silence_deadline(gaps: Observed, budget_s: float, heartbeat_s: float) -> float:
    """How long a peer may say nothing: 3.5 × the usual gap, at least a fifteenth of the budget, at most a quarter."""
    usual = deadline(gaps, budget_s, multiple=3.5, low=_LEAST_SILENCE, high=1 / 4)
    return max(usual, 3 * heartbeat_s)


def shortest_silence(budget_s: float, heartbeat_s: float) -> float:
    """The silence deadline of a peer is never shorter."""
    return max(budget_s * _LEAST_SILENCE, 3 * heartbeat_s)


def stall_deadline(
    own_s: float | None, services: Observed, budget_s: float, heartbeat_s: float, fences: int, probed: bool = False
) -> float:
    """How long a peer with work at hand may finish nothing. Doubles after each fence of the step, capped.

    `own_s`: seconds in which it usually finishes a microbatch. While that is not known, it is judged by what others
    take. `probed`: it has failed before, and has one microbatch at most, so that it costs little to go on without it.
    """
    if own_s is None:
        base = deadline(services, budget_s, multiple=8.0, low=_LEAST_STANDSTILL, high=1 / 2)
    else:
        times = OWN_PACE / 2 if probed else OWN_PACE
        base = max(times * own_s + 2 * heartbeat_s, budget_s * _LEAST_STANDSTILL)
    return min(base * float(2**fences), 4 * budget_s)


def want_deadline(waits: Observed, budget_s: float, attempts: int) -> float:
    """When to ask again for a frame. Doubles with each attempt, capped at half the budget.

    By what they usually take, not by the slowest: who has yet to make it says so, and is not asked in vain.
    """
    base = deadline(waits, budget_s, multiple=2.0, low=1 / 120, high=1 / 20, q=0.5)
    return min(base * float(2**attempts), budget_s / 2)
