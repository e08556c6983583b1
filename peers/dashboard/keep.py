"""Where the dashboard stores its own files: the database and the token."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from swarm.private_folder import PrivateFolder

TOKEN_FILE = "dashboard.token"
DATABASE = "dashboard.sqlite"


class Keep:
    """The folder for the dashboard's files: the home, or a temporary folder if the home cannot be written (a copy on a
    read-only disk).

    The database belongs to one process. Another dashboard of the same home makes a temporary database.
    """

    def __init__(self, home: Path, database: Path | None, token_file: Path | None) -> None:
        self._temporary: PrivateFolder | None = None
        writable = os.access(home, os.W_OK)
        self.database = database or (home if writable else self._own_folder()) / DATABASE
        self.token_file = token_file or (home if writable else self._own_folder()) / TOKEN_FILE
        self._lock = self._claim()

    def close(self) -> None:
        """Remove the temporary folder, if there is one, and release the database."""
        if self._temporary is not None:
            self._temporary.remove()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> int | None:
        """Take a lock, which is held as long as the process lives. Deleting `dashboard.sqlite*` does not release it.

        Return None if the disk has no locks, like some network disks.
        """
        try:
            self.database.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.database.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            self.database = self._own_folder() / DATABASE
            return None
        except OSError:
            os.close(lock)
            return None
        return lock

    def _own_folder(self) -> Path:
        if self._temporary is None:
            self._temporary = PrivateFolder("swarm-dashboard-")
        return self._temporary.path
