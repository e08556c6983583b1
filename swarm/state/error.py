"""The only error of this package, and the advice for a write that failed."""

from __future__ import annotations

import errno
from pathlib import Path


class StateError(ValueError):
    """A shard, checkpoint or transfer cannot be used or written. `where`: a file or sender; `reason`: what is wrong."""

    def __init__(self, where: str | Path, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = str(where)
        self.reason = reason


def how_to_make_room(error: OSError) -> str:
    """What the user can do after a file could not be written."""
    if error.errno == errno.EFBIG:
        return "raise the limit of a file's size with `ulimit -f unlimited`, or use a disk that allows larger files"
    return "free some space"
