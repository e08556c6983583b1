"""The port of who is to be found again: a coordinator or bootstrap node keeps its own over restarts.

Peers that wait for it dial where it was; without `--port` another one would leave them nobody to ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from peers.run.home import OpenHome
from swarm.net.addresses import components
from swarm.net.host import PortTaken
from swarm.net.listening import lasting_port, listen_on


class LastPortTaken(ValueError):
    """Somebody else listens where this home was known; the text says what to do."""


def at_last_port(listen: Sequence[str], home: OpenHome) -> tuple[str, ...]:
    """`listen`, or for any port the one of last time, or at the first start one that will be free again."""
    if tuple(listen) != listen_on(0):
        return tuple(listen)
    return listen_on(home.port or lasting_port())


def keep(listen: Sequence[str], home: OpenHome) -> None:
    """Of a host that listens there."""
    ports = [int(dict(components(address)).get("tcp", 0)) for address in listen]
    if ports and ports[0] and ports[0] != home.port:
        home.keep_port(ports[0])


def explained(error: PortTaken, asked: Sequence[str], home: OpenHome) -> PortTaken | LastPortTaken:
    """The same, said otherwise if nobody asked for that port now."""
    if tuple(asked) != listen_on(0):
        return error
    return LastPortTaken(
        f"port {home.port}, at which peers know the one that lives in {home.path}, is in use on this machine: end who "
        f"uses it, or choose another with --port and give out the new invite"
    )
