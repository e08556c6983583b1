"""What a peer waits for in a pass: since when, how often it was asked for in vain, and when to ask again."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.protocol.ids import FrameKey
from swarm.protocol.timeouts import Observed, want_deadline

MAX_PENDING = 2
"""For so many answers that a frame is yet to be made the next asking is twice as late each time. More of them would be
little gain, and the one frame in many that is lost after it was made would be missed late."""


class InFlight:
    """`waits` collects how long frames took that came at the first asking; it outlives the pass."""

    def __init__(self, waits: Observed, budget_s: float) -> None:
        self._waits = waits
        self._budget_s = budget_s
        self._at: dict[FrameKey, float] = {}
        self._in_vain: dict[FrameKey, int] = {}
        self._pending: dict[FrameKey, int] = {}

    def __contains__(self, key: FrameKey) -> bool:
        return key in self._at

    def note(self, key: FrameKey, now: float) -> None:
        """It is asked for now, or it is expected from now on."""
        self._at[key] = now

    def expect(self, key: FrameKey, now: float) -> None:
        """It comes unasked: how long that takes says nothing of what is asked for."""
        self._at[key] = now
        self._pending[key] = 0

    def forget(self, key: FrameKey) -> None:
        """It is not wanted any more; if it is again, it must be asked for."""
        for held in (self._at, self._in_vain, self._pending):
            held.pop(key, None)

    def arrived(self, key: FrameKey, now: float) -> None:
        if (at := self._at.pop(key, None)) is not None and not self.in_vain(key) and key not in self._pending:
            self._waits.add(now - at)

    def pending(self, key: FrameKey, now: float) -> None:
        """Whoever is to send it has said that it is yet to be made: so far nothing was in vain."""
        self._at[key] = now
        self._in_vain.pop(key, None)
        self._pending[key] = self._pending.get(key, 0) + 1

    def in_vain(self, key: FrameKey) -> int:
        """How often its deadline has passed without a word."""
        return self._in_vain.get(key, 0)

    def deadlines(self, keys: Iterable[FrameKey]) -> dict[FrameKey, float]:
        """When to ask again for those of `keys` that have been noted."""
        usual = want_deadline(self._waits, self._budget_s, 0)
        due = {}
        for key in keys:
            if (at := self._at.get(key)) is not None:
                times = self._in_vain.get(key, 0) + min(self._pending.get(key, 0), MAX_PENDING)
                due[key] = at + (want_deadline(self._waits, self._budget_s, times) if times else usual)
        return due

    def missed(self, key: FrameKey) -> None:
        """Its deadline has passed: the next one is longer."""
        self._in_vain[key] = self.in_vain(key) + 1
