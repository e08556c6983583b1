"""The folder of the sockets between a process and its libp2p daemon.

Temporary folders are cleaned: by age (systemd-tmpfiles, tmpreaper) or completely (a nightly script). Open connections
then survive, but no new one can be made: the process neither dials nor accepts. Against cleaning by age the sockets are
touched. Of the complete cleaning the process is notified, so that it ends and a supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOOK_EVERY_S = 2.0
YOUNG_FOR_S = 3600.0
"""Cleaners by age keep files that were touched in the last hours."""
LONGEST_PATH = 103
"""Bytes of a Unix socket's path: 103 on macOS, 107 on Linux."""
_LONGEST_NAME = len("/swarm-peer-01234567/p2pclient-01234567890.sock")


class NoSocketFolder(OSError):
    """No place for sockets; the text says which places were tried and what helps."""


class SocketFolder:
    """A private folder with a short path, made anew for each daemon."""

    def __init__(self) -> None:
        """Raises NoSocketFolder."""
        self.path = Path(_made())

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    async def until_cleaned(self, every_s: float = LOOK_EVERY_S) -> str:
        """Keep the sockets young; returns, with the reason, once one of them is gone."""
        seen: set[str] = set()
        touched = float("-inf")
        while True:
            there = _names(self.path)
            if seen - there:
                return (
                    f"{min(seen - there)} was removed from {self.path}, by which this process reaches its libp2p "
                    "daemon: set TMPDIR to a folder that is not cleaned, and start it again"
                )
            seen |= there
            if (now := asyncio.get_running_loop().time()) - touched >= YOUNG_FOR_S:
                touched = now
                _touch(self.path, there)
            await asyncio.sleep(every_s)


def _made() -> str:
    tried = []
    for parent in _parents():
        if len(os.fsencode(parent)) + _LONGEST_NAME > LONGEST_PATH:
            tried.append(f"{parent} (its path is too long for a socket)")
            continue
        try:
            return tempfile.mkdtemp(prefix="swarm-peer-", dir=parent)
        except OSError as error:
            tried.append(f"{parent} ({error.strerror})")
    raise NoSocketFolder(f"no folder for sockets: tried {', '.join(tried)}; set TMPDIR to one that can be written")


def _parents() -> Iterator[str]:
    """The folder of TMPDIR first; then those that most systems have."""
    if told := os.environ.get("TMPDIR"):
        yield os.path.abspath(told)
    yield from ("/tmp", "/var/tmp", "/dev/shm", "/run")


def _names(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except OSError:
        return set()


def _touch(folder: Path, names: set[str]) -> None:
    for path in (folder, *(folder / name for name in names)):
        try:
            os.utime(path)
        except OSError:
            continue  # it was removed in this moment: the next check reports it
