"""A toy run that diverges: from some version on, its results are not finite until the learning rate is lower."""

from __future__ import annotations

from typing import NamedTuple


class Diverging(NamedTuple):
    version: int
    """The first version with non-finite results."""
    above: float
    """The run diverges while the rate is above this; 0: always."""
    shows: bool
    """True if parameters and moments are not finite either. Then the run need not wait for skipped steps."""

    def is_so(self, version: int, rate: float) -> bool:
        return version >= self.version and rate > self.above
