"""Bans: the members that the coordinators have shut out, as last announced to this peer. The list survives restarts."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from swarm.atomic import atomic_file, write_whole
from swarm.net.network import Network
from swarm.protocol.messages import MAX_BANNED, Banned

WHY = "it has no part in the run any more"
_LONGEST = 1 << 20
"""Maximum size of the file in bytes."""


class Bans:
    """`path`: file in the home. `run_hash`: a list from the coordinators of another run is ignored."""

    def __init__(self, path: Path, run_hash: str, network: Network) -> None:
        self._path = path
        self._run_hash = run_hash
        self._network = network
        self.known = _read(path, run_hash)
        self._obey()

    def heard(self, message: Banned) -> None:
        """Obey a list from a coordinator, and store it. Members that are shut out lose their connections at once."""
        if message.number <= self.known.number:
            return
        self.known = message
        self._obey()
        body = {"run": self._run_hash, "number": message.number, "peers": message.peers}
        with contextlib.suppress(OSError), atomic_file(self._path) as file:  # on a full disk: they send it again later
            write_whole(file, json.dumps(body).encode())

    def _obey(self) -> None:
        self._network.shut_out(dict.fromkeys(self.known.peers, WHY))


def _read(path: Path, run_hash: str) -> Banned:
    """Read the stored list. If the file cannot be read, begin with an empty list: the coordinators send it again."""
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_LONGEST))
        if body["run"] == run_hash and isinstance(body["number"], int) and len(body["peers"]) <= MAX_BANNED:
            return Banned(body["number"], tuple(map(str, body["peers"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return Banned(0, ())
