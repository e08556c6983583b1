"""The folder of the sockets between a process and its libp2p daemon.

Systems clean temporary folders by age (systemd-tmpfiles, tmpreaper) or completely (a nightly script). Without its
sockets, the process keeps its open connections, but can neither dial nor accept new ones. To survive cleaning by age,
the sockets are touched regularly. If they are removed nevertheless, the process is told, so that it ends and a
supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from swarm.private_folder import PrivateFolder

LOOK_EVERY_S = 2.0
YOUNG_FOR_S = 3600.0
"""Seconds after which the sockets are touched again: cleaners by age keep files touched in the last hours."""
LONGEST_PATH = 103
"""Longest allowed path of a Unix socket, bytes: macOS allows 103, Linux 107."""
_LONGEST_NAME = len("/swarm-peer-01234567/p2pclient-01234567890.sock")


class NoSocketFolder(OSError):
    """No folder is usable for sockets; the message lists the folders that were tried, and what to do."""


class SocketFolder:
    """A new private folder with a short path, for one daemon."""

    def __init__(self) -> None:
        """Make the folder. Raises NoSocketFolder."""
        self._folder = _made()
        self.path = self._folder.path

    def remove(self) -> None:
        self._folder.remove()

    async def until_cleaned(self, every_s: float = LOOK_EVERY_S) -> str:
        """Touch the sockets regularly. Returns the reason when one of them is gone."""
        seen: set[str] = set()
        touched = float("-inf")
        while True:
            there = _names(self.path)
            if seen - there:
                return (
                    f"{min(seen - there)} was removed from {self.path}, which this process needs to reach its libp2p "
                    "daemon: set TMPDIR to a folder that is not cleaned, and start the process again"
                )
            seen |= there
            if (now := asyncio.get_running_loop().time()) - touched >= YOUNG_FOR_S:
                touched = now
                _touch(self.path, there)
            await asyncio.sleep(every_s)


def _made() -> PrivateFolder:
    tried = []
    for parent in _parents():
        if len(os.fsencode(parent)) + _LONGEST_NAME > LONGEST_PATH:
            tried.append(f"{parent} (its path is too long for a socket)")
            continue
        try:
            return PrivateFolder("swarm-peer-", parent)
        except OSError as error:
            tried.append(f"{parent} ({error.strerror})")
    raise NoSocketFolder(f"no usable folder for sockets: tried {', '.join(tried)}; set TMPDIR to a writable folder")


def _parents() -> Iterator[str]:
    """The folders to try: that of TMPDIR first, then those that most systems have."""
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
            continue  # it was just removed: the next check reports this
