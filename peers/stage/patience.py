"""How long a peer waits for a coordinator that it cannot reach, and what it reports meanwhile.

A restarted coordinator continues the run, so a peer keeps its state and keeps dialling. But the run may also have ended
while this machine was suspended, and then no coordinator ever answers. When its patience is over, a peer leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peers.runtime.core_loop import RunFailed
from swarm.events import CoordinatorAway, CoordinatorBack, Event
from swarm.protocol.io import RUN_FINISHED

DEFAULT_PATIENCE_S = 600.0
LONGEST_PATIENCE_S = 1e7

_PAUSE_S = 1.0
_FIRST_SAID_S = 1.0
"""Absences up to this number of seconds are not reported."""
_LONGEST_PAUSE_S = 5.0
"""Longest interval in seconds between two calls of `look` that counts as waiting. Time in which this process did not
run (stopped, suspended) does not count.
"""


class CoordinatorGone(RunFailed):
    """The coordinator was unreachable for this peer's whole patience."""


class HeardFinished(Exception):
    """A peer cannot reach the coordinator, and another peer of its process has heard that the run is finished."""

    def __init__(self) -> None:
        super().__init__(RUN_FINISHED)


class Patience:
    """The wait of one peer. Call `look` often. Times in seconds; `now` from any monotonic clock.

    `finished`: whether this process knows that the run is finished, for example because another seat has heard it.
    Then the peer does not wait for an unreachable coordinator.
    """

    def __init__(self, patience_s: float, finished: Callable[[], bool] = lambda: False) -> None:
        self._patience_s = patience_s
        self._finished = finished
        self._looked_at: float | None = None
        self._away_s = 0.0
        self._say_at = _FIRST_SAID_S
        self._said = False
        self.exhausted = False
        self.over = False
        """True once the run is finished and its coordinator is gone."""
        self._refusal: str | None = None

    def look(self, reason: str | None, now: float) -> CoordinatorAway | CoordinatorBack | None:
        """`reason`: why the coordinator cannot be reached; None: it can. Returns the event to report now.

        The wait is reported after a second, at each quarter of the patience, and at its end, with `leaves_in_s` 0.
        """
        pause = 0.0 if self._looked_at is None else min(now - self._looked_at, _LONGEST_PAUSE_S)
        self._looked_at = now
        if reason is None:
            told = CoordinatorBack(self._away_s) if self._said else None
            self._away_s, self._say_at, self._said = 0.0, _FIRST_SAID_S, False
            return told
        if self._finished():
            self.over = True
            return None
        self._away_s += pause
        if self._away_s >= self._patience_s:
            self.exhausted = True
        elif self._away_s < self._say_at:
            return None
        quarter = self._patience_s / 4
        self._say_at = (self._away_s // quarter + 1) * quarter
        self._said = True
        return CoordinatorAway(self._away_s, max(0.0, self._patience_s - self._away_s), reason)

    async def wait(self, reason: str, tell: Callable[[Event], object]) -> None:
        """Wait a moment before the coordinator is tried again, and report the wait. Raises CoordinatorGone when the
        patience is over, and HeardFinished.
        """
        away = self.look(reason, asyncio.get_running_loop().time())
        if self.over:
            raise HeardFinished from None
        if away is not None:
            tell(away)
        if self.exhausted:
            raise CoordinatorGone(self.last_words()) from None
        await asyncio.sleep(_PAUSE_S)

    def refused(self, reason: str) -> None:
        """The coordinator refuses this peer: do not wait any longer."""
        self.exhausted = True
        self._refusal = reason

    def last_words(self) -> str:
        """The reason why the peer leaves, as text."""
        if self.over:
            return RUN_FINISHED
        if self._refusal is not None:
            return f"the coordinator refuses this peer: {self._refusal}"
        waited = _duration(self._patience_s)
        return (
            f"the coordinator could not be reached for {waited}: the run is over, or its coordinator has moved. "
            "Ask the organiser for a new invite; `swarm-peer join` with it and the same --home continues from this "
            "peer's state"
        )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.3g} minutes" if seconds >= 120 else f"{seconds:.3g} seconds"
