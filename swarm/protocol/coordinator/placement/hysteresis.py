"""Hysteresis: what one move has done is not undone by the next because a measurement wavers.

A move against the direction of the last one between the same two stages must wait, twice as long every time. When
somebody comes to one of them or is lost, that is another swarm, and counts anew.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_TURNS = 6


@dataclass(slots=True)
class _Last:
    """Move between two stages."""

    source: int
    at: float
    turns: int = 0
    """How often the direction has changed."""


class Hysteresis:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self._last: dict[frozenset[int], _Last] = {}

    def moved(self, source: int, stage: int, now: float) -> None:
        """Somebody is to move from one stage to another."""
        pair = frozenset((source, stage))
        last = self._last.setdefault(pair, _Last(source, now))
        if last.source != source:
            last.turns = min(last.turns + 1, _MOST_TURNS)
        last.source, last.at = source, now

    def barred(self, now: float, dwell_s: float) -> frozenset[tuple[int, int]]:
        """(from, to) of moves that must wait. `dwell_s`: for so long a single peer stays where it is."""
        return frozenset(
            (stage, last.source)
            for pair, last in self._last.items()
            for stage in pair
            if stage != last.source and now - last.at < dwell_s * 2.0 ** (last.turns + 1)
        )

    def changed(self, stage: int) -> None:
        """Somebody came to a stage, or is gone from it."""
        for pair in [pair for pair in self._last if stage in pair]:
            del self._last[pair]
