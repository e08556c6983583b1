"""Patience: how long a peer waits for a coordinator that it cannot reach, and what it says meanwhile.

A coordinator that restarts goes on with the run, so a peer keeps its state and dials on. But a run may also be over,
while this machine slept: then nobody would ever tell. After its patience a peer leaves by itself.
"""

from __future__ import annotations

from peers.runtime.core_loop import RunFailed
from swarm.events import CoordinatorAway, CoordinatorBack

DEFAULT_PATIENCE_S = 600.0

_FIRST_SAID_S = 1.0
"""A connection that is back before is no news."""
_LONGEST_PAUSE_S = 5.0
"""Between two looks. Time in which this process did not run (stopped, suspended) was not waited."""


class CoordinatorGone(RunFailed):
    """The coordinator stayed away for as long as this peer was to wait."""


class Patience:
    """`look` often. Seconds everywhere; `now` from any clock that does not go back."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._looked_at: float | None = None
        self._away_s = 0.0
        self._say_at = _FIRST_SAID_S
        self._said = False
        self.exhausted = False
        self._refusal: str | None = None

    def look(self, reason: str | None, now: float) -> CoordinatorAway | CoordinatorBack | None:
        """`reason`: why the coordinator cannot be reached, None when it can. Returns what is to be told now.

        The waiting is told after a second, at each quarter of the patience, and at its end, with `leaves_in_s` 0.
        """
        pause = 0.0 if self._looked_at is None else min(now - self._looked_at, _LONGEST_PAUSE_S)
        self._looked_at = now
        if reason is None:
            told = CoordinatorBack(self._away_s) if self._said else None
            self._away_s, self._say_at, self._said = 0.0, _FIRST_SAID_S, False
            return told
        self._away_s += pause
        if self._away_s >= self._patience_s:
            self.exhausted = True
        elif self._away_s < self._say_at:
            return None
        quarter = self._patience_s / 4
        self._say_at = (self._away_s // quarter + 1) * quarter
        self._said = True
        return CoordinatorAway(self._away_s, max(0.0, self._patience_s - self._away_s), reason)

    def refused(self, reason: str) -> None:
        """The coordinator is there and will not have this peer: there is nothing to wait for."""
        self.exhausted = True
        self._refusal = reason

    def last_words(self) -> str:
        """Why the peer leaves."""
        if self._refusal is not None:
            return f"the coordinator refuses this peer: {self._refusal}"
        waited = _duration(self._patience_s)
        return (
            f"the coordinator could not be reached for {waited}: the run is over, or its coordinator has moved. "
            "Ask the organiser; `swarm-peer join` with the same --home goes on where this peer was"
        )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.3g} minutes" if seconds >= 120 else f"{seconds:.3g} seconds"
