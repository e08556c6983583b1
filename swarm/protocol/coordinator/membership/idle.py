"""Idle peers: they were alone in their stage and did nothing until the attempt at a step was given up.

Perhaps their device hangs, or they lie. Nobody else in the stage can do their work. So after the first attempt, another
peer may take a place beside an idle peer, and fetch its state. After the second one, the idle peer is left out if any
peer can take its place: if the idle peer has given its state to nobody, the run goes back to a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

LEFT_OUT_BUDGETS = 8
"""Number of step budgets for which an idle peer is left out, unless a step is decided before. It may have recovered, or
the peer that was to take its place may have failed.
"""


@dataclass(slots=True)
class _Record:
    times: int
    until: float
    reason: str


class Idle:
    """The idle peers of the present step, by peer id. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def add(self, peer: str, reason: str, budget_s: float, now: float) -> int:
        """The peer did nothing in one more attempt. Returns the number of these attempts."""
        record = self._records.setdefault(peer, _Record(0, now, reason))
        record.times += 1
        record.until, record.reason = now + LEFT_OUT_BUDGETS * budget_s, reason
        return record.times

    def clear(self) -> None:
        """A step is decided."""
        self._records.clear()

    def has(self, peer: str) -> bool:
        """Return True if another peer may take a place beside this peer."""
        return peer in self._records

    def leaves_out(self, peer: str, now: float) -> bool:
        """Return True if the peer should get no work if any other peer can take its place."""
        record = self._records.get(peer)
        return record is not None and record.times > 1 and now < record.until

    def why(self, peer: str) -> str | None:
        """The reason, as text; None if the peer is not idle."""
        record = self._records.get(peer)
        return None if record is None else record.reason
