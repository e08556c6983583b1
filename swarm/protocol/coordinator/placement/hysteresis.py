"""Hysteresis: a move is not undone by the next one because a measurement fluctuates.

A move against the direction of the last one between the same two stages must wait, twice as long every time. If a peer
joins or leaves one of the two stages, the count starts anew.
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
    """How often the direction has changed."""


class Hysteresis:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self._last: dict[frozenset[int], _Last] = {}

    def moved(self, source: int, stage: int, now: float) -> None:
        """A peer is to move from one stage to another."""
        pair = frozenset((source, stage))
        last = self._last.setdefault(pair, _Last(source, now))
        if last.source != source:
            last.turns = min(last.turns + 1, _MOST_TURNS)
        last.source, last.at = source, now

    def barred(self, now: float, dwell_s: float) -> frozenset[tuple[int, int]]:
        """(from, to) of moves that must wait. `dwell_s`: seconds that a single peer stays in its stage at least."""
        return frozenset(
            (stage, last.source)
            for pair, last in self._last.items()
            for stage in pair
            if stage != last.source and now - last.at < dwell_s * 2.0 ** (last.turns + 1)
        )

    def changed(self, stage: int) -> None:
        """A peer joined a stage, or left it."""
        for pair in [pair for pair in self._last if stage in pair]:
            del self._last[pair]
