"""Idle peers: they are alone in their stage, and an attempt at a step was given up because they did not do their work.

Perhaps their device hangs or has too little memory, or they lie. Nobody else in the stage can do their work. So after
the first attempt, another peer may take a place beside an idle peer, and fetch its state. If an attempt fails a step
budget later or more, the idle peer is left out if any peer can take its place. If it has given its state to nobody
until then, the run goes back to a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

LEFT_OUT_BUDGETS = 8
"""Number of step budgets for which an idle peer is left out, unless a step is decided before. It may have recovered, or
the peer that was to take its place may have failed.
"""
REMEMBERED = 4096
"""Number of peers that are remembered after the step in which they were idle."""


@dataclass(slots=True)
class _Record:
    since: float
    reason: str
    budget_s: float
    last: float = 0.0
    times: int = 0


class Idle:
    """The idle peers of the present step, by peer id. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._unproven: dict[str, None] = {}
        """Peers that were idle in an earlier step, and have done no work in a decided one since, oldest first."""

    def add(self, peer: str, reason: str, budget_s: float, now: float) -> int:
        """The peer did not do its work in one more attempt. Returns the number of these attempts."""
        record = self._records.setdefault(peer, _Record(now, reason, budget_s))
        record.times += 1
        record.last, record.reason = now, reason
        return record.times

    def decided(self) -> None:
        """A step is decided. `worked` tells who did its work."""
        for peer in self._records:
            self._unproven.pop(peer, None)
            self._unproven[peer] = None
        self._records.clear()
        while len(self._unproven) > REMEMBERED:
            del self._unproven[next(iter(self._unproven))]

    def worked(self, peer: str) -> None:
        """A step with work of the peer is decided."""
        self._unproven.pop(peer, None)

    def is_unproven(self, peer: str) -> bool:
        """Return True if the peer was idle, now or earlier, and no step with its work has been decided since.

        A stage should not rely on it alone.
        """
        return peer in self._records or peer in self._unproven

    def has(self, peer: str) -> bool:
        """Return True if another peer may take a place beside this peer."""
        return peer in self._records

    def leaves_out(self, peer: str, now: float) -> bool:
        """Return True if the peer should get no work if any other peer can take its place."""
        record = self._records.get(peer)
        if record is None:
            return False
        budget_s = record.budget_s
        return record.last - record.since >= budget_s and now - record.last < LEFT_OUT_BUDGETS * budget_s

    def why(self, peer: str) -> str | None:
        """The reason, as text; None if the peer is not idle."""
        record = self._records.get(peer)
        return None if record is None else record.reason
