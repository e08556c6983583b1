"""The phases of a coordinator's core."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    STARTING = "starting"
    BETWEEN = "between steps"
    OPEN = "open"
    DECIDING = "deciding"
    FINISHED = "finished"

    @property
    def has_pass(self) -> bool:
        """True while a pass is open or its decision is being written."""
        return self in (Phase.OPEN, Phase.DECIDING)
