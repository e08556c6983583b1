"""Keep: where the dashboard has its own files, the database and the token."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TOKEN_FILE = "dashboard.token"
DATABASE = "dashboard.sqlite"


class Keep:
    """In the home; if that cannot be written (a copy on a read-only disk), in a folder that goes with the process."""

    def __init__(self, home: Path, database: Path | None, token_file: Path | None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        folder = home
        if (database is None or token_file is None) and not os.access(home, os.W_OK):
            self._temporary = tempfile.TemporaryDirectory(prefix="swarm-dashboard-")
            folder = Path(self._temporary.name)
        self.database = database or folder / DATABASE
        self.token_file = token_file or folder / TOKEN_FILE
