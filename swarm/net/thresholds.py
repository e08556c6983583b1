"""For each peer, how many bytes under way its connection reaches fast: TCP's slow start threshold.

Until as many bytes are under way, a connection doubles them in each round trip; then it adds a packet per round trip
(RFC 5681). After losses the threshold is low, so padding (peers/stage/padding.py) would only delay the data.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable

from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from swarm.net.addresses import AddressError, components
from swarm.net.child_sockets import no_descriptor, tcp_sockets

LOOK_EVERY_S = 2.0

_INFO_BYTES = 80
_MSS, _THRESHOLD = 16, 76
"""Places of tcpi_snd_mss and tcpi_snd_ssthresh in struct tcp_info of linux/tcp.h, 32 bits each."""
_INFINITE = 0x7FFFFFFF
"""The kernel's threshold of a connection that has lost nothing yet."""


class Thresholds:
    """The thresholds of the connections of one daemon."""

    def __init__(self, pid: int, peers: Callable[[], Awaitable[Iterable[PeerInfo]]]) -> None:
        """`pid`: the daemon, a child of this process. `peers()`: the connected peers, each with the addresses of the
        other ends of its connections.
        """
        self._pid = pid
        self._peers = peers
        self._bytes: dict[str, int] = {}

    def of(self, peer_id: str) -> int | None:
        """The threshold of a peer's fastest connection, bytes. None: it has lost nothing yet, or this is unknown."""
        return self._bytes.get(peer_id)

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Look again and again. Returns only if this system does not tell, or when the daemon has ended."""
        while True:
            try:
                await self.look()
            except (OSError, EOFError, AttributeError, P2PDaemonError) as error:
                self._bytes = {}
                if not (isinstance(error, OSError) and no_descriptor(error)):
                    return
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Read the thresholds of all connections. Raises OSError, EOFError, AttributeError, P2PDaemonError."""
        found = _thresholds(self._pid)
        known: dict[str, int | None] = {}
        for peer in await self._peers() if found else ():
            peer_id = peer.peer_id.to_base58()
            for end in map(_end, map(str, peer.addrs)):
                if end in found:
                    known[peer_id] = _larger(found[end], known.get(peer_id, 0))
        self._bytes = {peer_id: nbytes for peer_id, nbytes in known.items() if nbytes is not None}


def _thresholds(pid: int) -> dict[tuple[str, int], int | None]:
    """{(address, port) of the other end: bytes; None: infinite}"""
    found: dict[tuple[str, int], int | None] = {}
    for connection in tcp_sockets(pid):
        try:
            address, port, *_ = connection.getpeername()
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:  # it listens, or has ended
            continue
        (mss,), (packets,) = struct.unpack_from("=I", info, _MSS), struct.unpack_from("=I", info, _THRESHOLD)
        nbytes = None if packets >= _INFINITE else packets * mss
        end = address.removeprefix("::ffff:"), port
        found[end] = _larger(nbytes, found.get(end, 0))
    return found


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _end(maddr: str) -> tuple[str, int] | None:
    """The address and TCP port of a multiaddress, if it has them."""
    try:
        parts = dict(components(maddr))
        return parts.get("ip4") or parts["ip6"], int(parts["tcp"])
    except (AddressError, KeyError, ValueError):
        return None
