"""Prevents a fluctuating measurement from undoing the last move of a peer.

If a move has the opposite direction of the last move between the same two stages, it must wait. The wait doubles each
time. If a peer joins or leaves one of the two stages, the count starts again.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_TURNS = 6


@dataclass(slots=True)
class _Last:
    """The last move between two stages."""

    source: int
    at: float
    turns: int = 0
    """How often the direction of moves between the two stages has changed."""


class Hysteresis:
    """The moves that must wait. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._last: dict[frozenset[int], _Last] = {}

    def moved(self, source: int, stage: int, now: float) -> None:
        """A peer moves from `source` to `stage`."""
        pair = frozenset((source, stage))
        last = self._last.setdefault(pair, _Last(source, now))
        if last.source != source:
            last.turns = min(last.turns + 1, _MOST_TURNS)
        last.source, last.at = source, now

    def barred(self, now: float, dwell_s: float) -> frozenset[tuple[int, int]]:
        """The moves that must wait, as (from, to). `dwell_s`: the minimum stay of a peer in its stage, in seconds."""
        return frozenset(
            (stage, last.source)
            for pair, last in self._last.items()
            for stage in pair
            if stage != last.source and now - last.at < dwell_s * 2.0 ** (last.turns + 1)
        )

    def changed(self, stage: int) -> None:
        """A peer joined or left a stage."""
        for pair in [pair for pair in self._last if stage in pair]:
            del self._last[pair]
