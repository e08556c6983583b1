"""Makes Hugging Face files of a trained model by running `swarm-peer export` in a separate process.

Exports run one at a time, at low priority. The dashboard's own process never loads a model, and training is not
affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.dashboard.access import Denied
from peers.run.home import Home

_MOST = 16
_LAST_WORDS = 400
_LEAST_FREE = 1 << 30


@dataclass(slots=True)
class Export:
    version: int
    state: str
    """waiting, running, done or failed."""
    folder: Path
    text: str = ""
    """The reason why the export failed."""

    total: int = 0
    """Approximate final size in bytes; 0: unknown."""

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return sum(file.stat().st_size for file in self.folder.glob("*") if file.is_file())


class Exports:
    """The exports of one dashboard. `run` makes the ordered exports until it is cancelled."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.path / "exports"
        self._all: dict[int, Export] = {}
        self.revision = 0
        """Changes whenever an export changes."""
        self._ordered: asyncio.Queue[Export] = asyncio.Queue()
        if self._folder.is_dir():
            for path in self._folder.glob("version-*"):
                number = path.name.removeprefix("version-")
                if number.isdecimal() and (path / "config.json").is_file():
                    self._all[int(number)] = Export(int(number), "done", path)

    def listed(self) -> list[dict[str, Any]]:
        return [
            {
                "version": each.version,
                "state": each.state,
                "text": each.text,
                "file": each.folder.name if each.state == "done" else None,
                "nbytes": each.nbytes,
                "total": each.total,
            }
            for _, each in sorted(self._all.items())
        ]

    def order(self, version: int) -> dict[str, Any]:
        """Order the export of a version, unless it was ordered already. Raises Denied."""
        known = self._all.get(version)
        if known is None or known.state == "failed":
            shards = list((self._home.archive / f"{version:08d}").glob("*.safetensors")) if version >= 0 else []
            if not shards:
                raise Denied(404, f"the archive has no version {version}")
            if sum(each.state != "done" for each in self._all.values()) >= _MOST:
                raise Denied(409, "too many exports are ordered already")
            free, size = shutil.disk_usage(self._home.path).free, sum(shard.stat().st_size for shard in shards)
            if free < size + _LEAST_FREE:
                raise Denied(507, f"the disk has {free >> 20} MB left: too little for a model of {size >> 20} MB")
            known = Export(version, "waiting", self._folder / f"version-{version}", total=size)
            self._all[version] = known
            self.revision += 1
            self._ordered.put_nowait(known)
        return {"version": version, "state": known.state}

    def finished(self, name: str) -> Path:
        """The folder of a finished export. Raises Denied."""
        for each in self._all.values():
            if each.folder.name == name and each.state == "done":
                return each.folder
        raise Denied(404, "there is no such export")

    async def run(self) -> None:
        while True:
            export = await self._ordered.get()
            export.state = "running"
            self.revision += 1
            try:
                code, words = await self._make(export)
            except OSError as error:
                code, words = 1, str(error)
            export.state = "done" if code == 0 else "failed"
            self.revision += 1
            export.text = "" if code == 0 else words[-_LAST_WORDS:] or f"it ended with code {code}"

    async def _make(self, export: Export) -> tuple[int, str]:
        """Make an export. Returns the exit code and the last lines of output."""
        self._folder.mkdir(exist_ok=True)
        words = ["export", str(export.folder), "--home", str(self._home.path), "--version", str(export.version)]
        process = await asyncio.create_subprocess_exec(
            *(*_behind_the_rest(), sys.executable, "-m", "peers", *words, "--force", "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stderr is not None
        try:
            last = b""
            while chunk := await process.stderr.read(65_536):
                last = (last + chunk)[-4096:]
            return await process.wait(), last.decode(errors="replace").strip()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _behind_the_rest() -> list[str]:
    """A command prefix that gives the export lower priority than training for processor and disk, but enough of both
    to finish on a busy machine.
    """
    words = ["nice", "-n", "10"] if shutil.which("nice") else []
    return ["ionice", "-c", "2", "-n", "7", *words] if shutil.which("ionice") else words
