"""Results of a long study in one JSON file, each written as soon as it is known."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Cells:
    """Results by group and name. Several processes may write into the same file at the same time."""

    def __init__(self, file: Path) -> None:
        """`file` need not exist. Its folder is created."""
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def group(self, group: str) -> dict[str, Any]:
        """The results of a group by name, as the file has them now."""
        with self._locked():
            found: dict[str, Any] = self._read().get(group, {})
        return found

    def put(self, group: str, name: str, result: Any) -> None:
        """Add a result, or replace the one of the same name. `result`: whatever JSON can represent."""
        with self._locked():
            known = self._read()
            known.setdefault(group, {})[name] = result
            ordered = {key: dict(sorted(known[key].items())) for key in sorted(known)}
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(ordered, indent=1) + "\n")
            fresh.replace(self._file)

    def _read(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return known

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
