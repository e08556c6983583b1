"""The notebook: a file in a home with the addresses at which other processes were last known.

A coordinator notes all its recent peers, to dial them after a restart. A peer notes the coordinators. If one of them
moves while the peer is connected, the peer finds it after its own restart, although its invite has the old address. In
another notebook, a peer notes some members, through which it finds a coordinator that has moved in the meantime.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from swarm.net import records
from swarm.net.addresses import AddressError, split_peer
from swarm.net.invite import Invite

MAX_NOTED = 4096
"""Maximum number of peers in a notebook."""
_MAX_BYTES = MAX_NOTED * records.MAX_RECORD
"""Maximum number of bytes that are read from a notebook."""
_log = logging.getLogger(__name__)

Entries = Mapping[str, tuple[int, tuple[str, ...]]]
"""For each peer id, the incarnation and addresses of its newest record."""


class Notebook:
    """`of`: the peers that are noted; None: all. `most`: if there are more, the newest of them are noted."""

    def __init__(self, path: Path, of: Collection[str] | None = None, most: int = MAX_NOTED) -> None:
        self._path = path
        self._most = most
        self._of = None if of is None else frozenset(of)

    def read(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """What is noted. Empty if the file is missing or cannot be used; the latter is logged."""
        try:
            with self._path.open(encoding="utf-8") as file:
                noted = json.loads(file.read(_MAX_BYTES))
            return self._wanted(
                {
                    str(peer): (int(life), tuple(map(str, addresses))[: records.MAX_ADDRESSES])
                    for peer, (life, addresses) in list(noted.items())[-MAX_NOTED:]
                    if 0 <= life < 2**63
                }
            )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            _log.warning("%s cannot be used, so this process waits until peers dial it: %s", self._path, error)
            return {}

    def write(self, entries: Entries) -> None:
        """Replace the file. If it cannot be written, this is logged."""
        try:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(self._wanted(entries)))
            fresh.replace(self._path)
        except OSError as error:
            _log.warning(
                "%s cannot be written, so after a restart this process waits until peers dial it: %s",
                self._path,
                error,
            )

    def _wanted(self, entries: Entries) -> dict[str, tuple[int, tuple[str, ...]]]:
        wanted = [(peer, entry) for peer, entry in entries.items() if self._of is None or peer in self._of]
        return dict(wanted[-self._most :])


def addresses_in(path: Path) -> tuple[str, ...]:
    """All addresses in a notebook that can be dialled, each ending in /p2p/ and its peer's id."""
    found = []
    for peer, (_, addresses) in Notebook(path).read().items():
        full = (address if f"/p2p/{peer}" in address else f"{address}/p2p/{peer}" for address in addresses)
        found += [address for address in full if _leads_to(address, peer)]
    return tuple(found)


def current(invite: Invite, *notebooks: Path) -> Invite:
    """The invite, with the addresses at which its machines were last known. Addresses that cannot be used are left
    out.
    """
    machines = {split_peer(address)[1] for address in invite.addresses}
    found = dict.fromkeys(invite.addresses)
    for path in notebooks:
        for peer, (_, addresses) in Notebook(path, [peer for peer in machines if peer]).read().items():
            found |= dict.fromkeys(address for address in addresses if _leads_to(address, peer))
    return replace(invite, addresses=tuple(found))


def _leads_to(address: str, peer: str) -> bool:
    try:
        return split_peer(address)[1] == peer
    except AddressError:
        return False
