"""A knock: asks whether a process with a given peer id answers, under a fresh key.

A coordinator asks this about its own peer id before it starts, because its home may be a copy. libp2p refuses to dial
one's own id, so the question needs another key. libp2p authenticates the answer: nobody without the coordinator's key
can give it. The process itself must answer, because a daemon lives on for a moment after its process was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from swarm.net.addresses import components
from swarm.net.bulk import PROTOCOL
from swarm.net.daemon import Daemon, DaemonP2P
from swarm.net.handshake import Channel, Introduction, Refused, Role, introduce
from swarm.net.identity import Identity
from swarm.net.sockets import SocketFolder
from swarm.net.wire_bounds import WireError
from swarm.private_folder import PrivateFolder
from swarm.protocol.ids import Actor

TCP_S = 1.5
"""Seconds within which a TCP connection must open. A machine that is off does not refuse it."""
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
_LISTEN = "/ip4/127.0.0.1/tcp/0"


async def knock(peer_id: str, maddrs: Sequence[str], run_hash: str, within_s: float) -> bool:
    """Whether a process of `peer_id` answers at one of the addresses in time. False also if no daemon can be started
    to ask.
    """
    try:
        async with asyncio.timeout(within_s):
            there = await _listening(maddrs)  # usually none: then no daemon needs to be started
            return bool(there) and await _answers(peer_id, there, run_hash, within_s)
    except (TimeoutError, P2PDaemonError, OSError, WireError):  # DialError and StreamClosed are OSErrors
        return False


async def _listening(maddrs: Sequence[str]) -> list[str]:
    """The addresses at which anybody accepts TCP connections."""
    found = await asyncio.gather(*map(_accepts, maddrs))
    return [address for address, accepts in zip(maddrs, found, strict=True) if accepts]


async def _accepts(address: str) -> bool:
    parts = dict(components(address))
    host = next((parts[kind] for kind in _HOSTS if kind in parts), None)
    if host is None or "tcp" not in parts:
        return False
    try:
        async with asyncio.timeout(TCP_S):
            _, writer = await asyncio.open_connection(host, int(parts["tcp"]))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _answers(peer_id: str, maddrs: Sequence[str], run_hash: str, within_s: float) -> bool:
    sockets = SocketFolder()
    try:
        with PrivateFolder("swarm-knock-") as folder:
            identity = Identity.load(folder.path / "identity.key")
            p2p = await DaemonP2P.start(
                sockets,
                initial_peers=None,
                host_maddrs=[_LISTEN],
                identity_path=str(identity.path),
                check_if_identity_free=False,
                nat_port_map=False,
                startup_timeout=within_s,
            )
        try:
            return await _greeted(Daemon(p2p), peer_id, maddrs, _guest(identity, run_hash), within_s)
        finally:
            await asyncio.shield(p2p.shutdown())
    finally:
        sockets.remove()


async def _greeted(daemon: Daemon, peer_id: str, maddrs: Sequence[str], guest: Introduction, within_s: float) -> bool:
    await daemon.connect(peer_id, maddrs, within_s)
    stream = await daemon.open_stream(peer_id, PROTOCOL, within_s)
    try:
        await introduce(stream, guest, peer_id)
    except Refused:
        pass  # what every stranger is told
    finally:
        stream.abort()
    return True


def _guest(identity: Identity, run_hash: str) -> Introduction:
    return Introduction(run_hash, Actor(identity.peer_id, 0), Role.GUEST, None, Channel.BULK)
