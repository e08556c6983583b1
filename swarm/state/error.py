"""The only error of this package."""

from __future__ import annotations

from pathlib import Path


class StateError(ValueError):
    """A shard, checkpoint or transfer cannot be used or written. `where`: a file or sender; `reason`: what is wrong."""

    def __init__(self, where: str | Path, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = str(where)
        self.reason = reason
