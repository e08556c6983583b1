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
PROVEN_AFTER = 4
"""Number of decided steps with its work after which a stage may rely on an idle peer alone again. Twice as many each
further time.
"""
MOST_DOUBLINGS = 8
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
        self._unproven: dict[str, int] = {}
        """The peers that were idle in an earlier step, oldest first: the number of steps in which they must still do
        their work.
        """
        self._times: dict[str, int] = {}
        """Number of steps in which each of these peers, and of those that have done their work since, was idle."""

    def add(self, peer: str, reason: str, budget_s: float, now: float) -> int:
        """The peer did not do its work in one more attempt. Returns the number of these attempts."""
        record = self._records.setdefault(peer, _Record(now, reason, budget_s))
        record.times += 1
        record.last, record.reason = now, reason
        return record.times

    def leave_out(self, peer: str, reason: str, budget_s: float, now: float) -> None:
        """The peer should get no work from now on if any other peer can take its place."""
        self._records[peer] = _Record(now - budget_s, reason, budget_s, now, 1)

    def decided(self) -> None:
        """A step is decided. `worked` tells who did its work."""
        for peer in self._records:
            times = self._times.pop(peer, 0)
            self._times[peer] = times + 1
            self._unproven.pop(peer, None)
            self._unproven[peer] = PROVEN_AFTER << min(times, MOST_DOUBLINGS)
        self._records.clear()
        for known in (self._unproven, self._times):
            while len(known) > REMEMBERED:
                del known[next(iter(known))]

    def worked(self, peer: str) -> None:
        """A step with work of the peer is decided."""
        if left := self._unproven.get(peer):
            self._unproven[peer] = left - 1
            if left == 1:
                del self._unproven[peer]

    def is_unproven(self, peer: str) -> bool:
        """Return True if the peer is idle, or was, and has not yet done its work in enough steps since: a stage should
        not rely on it alone.
        """
        return peer in self._records or peer in self._unproven

    def was(self, peer: str) -> bool:
        """Return True if the peer was idle in an earlier step."""
        return peer in self._times

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
