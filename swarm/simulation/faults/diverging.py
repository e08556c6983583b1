"""A toy run that diverges: from some version on nothing that it gives is finite, until the learning rate is lower."""

from __future__ import annotations

from typing import NamedTuple


class Diverging(NamedTuple):
    version: int
    """From this one on."""
    above: float
    """As long as the rate is above this; 0: for good."""
    shows: bool
    """Parameters and moments are not finite either, so that nobody has to wait for skipped steps."""

    def is_so(self, version: int, rate: float) -> bool:
        return version >= self.version and rate > self.above
