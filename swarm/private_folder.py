"""A private temporary folder of one process. If the process was killed, a later one removes the folder.

The owner holds a lock on a file in the folder for as long as it lives. The system releases it however the process ends,
so a folder whose lock is free has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

OWNER = "owner.lock"
"""The locked file. A folder without it belongs to something else, or is being made."""


class PrivateFolder:
    """A new folder that only this user can read, for as long as the process needs it. Also a context manager."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """Make the folder in `parent` (None: the folder for temporary files). Folders with the same prefix there that
        have no owner any more are removed. Raises OSError.
        """
        parent = parent or tempfile.gettempdir()
        _remove_left(Path(parent), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._owner = _locked(self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _locked(folder: Path) -> int | None:
    """The open lock of a new folder. None: this disk has no locks, or has no room; then nobody removes the folder.

    The file gets its name once it is locked, so that it is never seen unlocked while its owner lives.
    """
    new = folder / f"new-{OWNER}"
    owner = None
    try:
        owner = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / OWNER)
    except OSError:
        if owner is not None:
            os.close(owner)
        with contextlib.suppress(OSError):
            new.unlink()
        return None
    return owner


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove the folders whose owner was killed."""
    try:
        left = [entry.path for entry in os.scandir(parent) if entry.name.startswith(prefix)]
    except OSError:
        return
    for path in left:
        try:
            owner = os.open(os.path.join(path, OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's folder, or none of ours
            continue
        try:
            if os.fstat(owner).st_uid == os.geteuid():
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(owner)
