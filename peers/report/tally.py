"""Counts repeated troubles by name, and decides which repetitions are worth a line in the log."""

from __future__ import annotations

_MOST_NAMES = 4096


class Tally:
    """Counts per name. The first ten of each name are reported, then the 100th, the 1,000th …, so a stranger cannot
    fill a disk.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Count one more and return the count. Beyond 4,096 names, the oldest name is forgotten."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if len(self._counts) > _MOST_NAMES:
            del self._counts[next(iter(self._counts))]
        return count
