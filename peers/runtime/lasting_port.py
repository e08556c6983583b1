"""The port of a process that others must find again: a coordinator or bootstrap node keeps its port across restarts.

Waiting peers dial the old port; if the port changed at a restart, they would not find the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from peers.run.home import OpenHome
from swarm.net.addresses import components
from swarm.net.host import PortTaken
from swarm.net.listening import lasting_port, listen_on


class LastPortTaken(ValueError):
    """Another process listens on the port that this home used before. The text says what to do."""


def at_last_port(listen: Sequence[str], home: OpenHome) -> tuple[str, ...]:
    """The addresses to listen on. If `listen` leaves the port open, this is the last port; at the first start, a port
    that is likely to be free again.
    """
    if tuple(listen) != listen_on(0):
        return tuple(listen)
    return listen_on(home.port or lasting_port())


def keep(listen: Sequence[str], home: OpenHome) -> None:
    """Store the port on which a host listens."""
    ports = [int(dict(components(address)).get("tcp", 0)) for address in listen]
    if ports and ports[0] and ports[0] != home.port:
        home.keep_port(ports[0])


def explained(error: PortTaken, asked: Sequence[str], home: OpenHome) -> PortTaken | LastPortTaken:
    """The error for the user. Its text differs if the user did not request the port now."""
    if tuple(asked) != listen_on(0):
        return error
    return LastPortTaken(
        f"port {home.port} is in use on this machine, and peers look for the process of {home.path} at this port: end "
        f"the process that uses the port, or choose another port with --port and give out the new invite"
    )
