"""Tracks the frames that a peer waits for in a pass: since when, how often it asked in vain, and when to ask again."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.protocol.ids import FrameKey
from swarm.protocol.timeouts import Observed, want_deadline

MAX_PENDING = 2
"""The delay until the next request doubles with each answer "not computed yet", at most this number of times.

A higher limit would gain little, and would delay the detection of a frame that is computed late and then lost (rare).
"""


class InFlight:
    """The frames that a peer waits for. `waits` collects how long frames took to arrive after a single request. It
    outlives the pass.
    """

    def __init__(self, waits: Observed, budget_s: float) -> None:
        self._waits = waits
        self._budget_s = budget_s
        self._at: dict[FrameKey, float] = {}
        self._in_vain: dict[FrameKey, int] = {}
        self._pending: dict[FrameKey, int] = {}

    def __contains__(self, key: FrameKey) -> bool:
        return key in self._at

    def note(self, key: FrameKey, now: float) -> None:
        """Start to wait for a frame that is requested now, or whose sender was asked before."""
        self._at[key] = now

    def expect(self, key: FrameKey, now: float) -> None:
        """Start to wait for a frame that is sent without a request. Its arrival time does not count in `waits`."""
        self._at[key] = now
        self._pending[key] = 0

    def forget(self, key: FrameKey) -> None:
        """Stop waiting for a frame. If it is needed again later, it must be requested."""
        for held in (self._at, self._in_vain, self._pending):
            held.pop(key, None)

    def arrived(self, key: FrameKey, now: float) -> None:
        if (at := self._at.pop(key, None)) is not None and not self.in_vain(key) and key not in self._pending:
            self._waits.add(now - at)

    def pending(self, key: FrameKey, now: float) -> None:
        """The sender answered that it has not computed the frame yet, so the earlier requests were not in vain."""
        self._at[key] = now
        self._in_vain.pop(key, None)
        self._pending[key] = self._pending.get(key, 0) + 1

    def in_vain(self, key: FrameKey) -> int:
        """How often the deadline of a frame has passed without an answer."""
        return self._in_vain.get(key, 0)

    def deadlines(self, keys: Iterable[FrameKey]) -> dict[FrameKey, float]:
        """When to ask again, for each of `keys` that this peer waits for."""
        usual = want_deadline(self._waits, self._budget_s, 0)
        due = {}
        for key in keys:
            if (at := self._at.get(key)) is not None:
                times = self._in_vain.get(key, 0) + min(self._pending.get(key, 0), MAX_PENDING)
                due[key] = at + (want_deadline(self._waits, self._budget_s, times) if times else usual)
        return due

    def missed(self, key: FrameKey) -> None:
        """The deadline of a frame has passed. The next deadline is longer."""
        self._in_vain[key] = self.in_vain(key) + 1
