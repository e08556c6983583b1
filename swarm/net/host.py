"""The libp2p host of a process: identity, daemon and DHT node, all in the caller's asyncio loop, without forks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection, Sequence
from pathlib import Path

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2

from swarm.net import addresses, dht_clock
from swarm.net.daemon import Daemon, DaemonP2P, DialError, StreamHandler
from swarm.net.dht_protocol import node_id_of
from swarm.net.flood_guard import FloodGuard
from swarm.net.identity import Identity
from swarm.net.listening import DEFAULT_LISTEN, bound, check_announced, settle, told
from swarm.net.records import RecordGuard
from swarm.net.run_key import RunKey
from swarm.net.send_buffers import SendBuffers
from swarm.net.sockets import NoSocketFolder, SocketFolder
from swarm.net.stream import Stream
from swarm.net.thresholds import Thresholds

DHT_ERRORS = (OSError, ValueError, TimeoutError, P2PDaemonError)
"""The errors raised if a DHT or a daemon does not answer."""

DIAL_TIMEOUT_S = 10.0
_ENTRY_TIMEOUT_S = 5.0
"""Seconds within which a bootstrap node must answer."""
_NEIGHBOURS_S = 3.0

_UNREACHED = "failed to connect to bootstrap peers"
"""The daemon's error text when it reaches none of the bootstrap addresses."""
_FREED_S = 10.0
"""Seconds for which to wait for the port: the daemon of a killed process may still hold it."""
_SIGNAL_S = 0.1
"""Seconds to wait after the daemon's end: a signal that has ended it, such as Ctrl-C, then has reached us too."""


class HostError(ConnectionError):
    """The libp2p host cannot start; the message gives the reason and what to change."""


class PortTaken(HostError):
    """Another process on this machine listens on the port."""


class NobodyAnswers(HostError):
    """No bootstrap address answers."""


class Unresponsive(NobodyAnswers):
    """A bootstrap node was reached, but its DHT does not answer in time: it is busy, or hangs."""


class Host:
    """A running libp2p host. `create` starts it, `close` ends it; `died` resolves when its daemon ends by itself."""

    def __init__(
        self,
        identity: Identity,
        p2p: DaemonP2P,
        dht: DHTNode,
        listen: Sequence[str],
        guard: RecordGuard,
        *,
        announced: bool,
    ) -> None:
        self.identity = identity
        self.peer_id = identity.peer_id
        self.dht = dht
        self.key = guard.key
        """The key of the run to which this host's DHT node belongs. None: the node belongs to no run."""
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolves with the reason when the daemon ends or becomes unreachable without a call of `close`."""
        self.clock = dht_clock.Difference()
        """How the bootstrap nodes' clocks differed from this machine's clock; no difference if it is negligible."""
        self.reached: set[str] = set()
        """Peers to which we have opened a stream; the dialler removes peers that are no longer needed."""
        self.listen = tuple(listen)
        """The multiaddresses on which the host listens, each with its actual port."""
        self.flood_guard = FloodGuard(listen)
        self._announced = announced
        self._guard = guard
        self._closed = False
        self._p2p = p2p
        self._daemon = Daemon(p2p)
        self.thresholds = Thresholds(self.daemon_pid, p2p.list_peers)
        """For each peer, how many bytes under way its connection reaches fast. Known while its `watch` runs."""
        self.send_buffers = SendBuffers(self.daemon_pid)
        watches = (self._watch_daemon(), self._watch_sockets(), self.flood_guard.watch(), self.send_buffers.watch())
        self._watches = [asyncio.create_task(watch) for watch in watches]

    @classmethod
    async def create(
        cls,
        identity_path: Path,
        listen: Sequence[str] = DEFAULT_LISTEN,
        initial_peers: Sequence[str] = (),
        *,
        announce: Sequence[str] | None = None,
        key: RunKey | None = None,
        startup_timeout: float = 30.0,
    ) -> Host:
        """Start the daemon and the DHT node.

        `identity_path`: file of the Ed25519 key, created if missing. `listen`: multiaddresses to listen on; `announce`:
        those to give to others. `initial_peers`: bootstrap multiaddresses that end in /p2p/…; one answer is enough,
        even if that node does not accept us as a member. `key`: key of the run to which the DHT node belongs; None: the
        node answers all peers. Raises NobodyAnswers (Unresponsive) and other HostErrors, AddressError, IdentityError.
        """
        identity = Identity.load(identity_path)
        for address in initial_peers:
            if addresses.split_peer(address)[1] is None:
                raise addresses.AddressError(f"{address!r} does not end in /p2p/ and the peer's id")
        listen = settle(listen)
        announce = check_announced(announce or (), identity.peer_id)
        await _refuse_taken(listen)
        # leave out our own address: a restarted bootstrap node may find itself in the list
        others = [a for a in initial_peers if addresses.split_peer(a)[1] != identity.peer_id]
        try:
            sockets = SocketFolder()
        except NoSocketFolder as error:
            raise HostError(f"libp2p does not start: {error}") from None
        try:
            p2p = await DaemonP2P.start(
                sockets,
                initial_peers=others or None,
                host_maddrs=list(listen),
                announce_maddrs=list(announce) if announce else None,
                identity_path=str(identity.path),
                check_if_identity_free=False,  # this check starts a second daemon; our handshake detects duplicates
                nat_port_map=False,
                startup_timeout=startup_timeout,
            )
        except BaseException as error:
            sockets.remove()
            if not isinstance(error, P2PDaemonError | OSError):
                raise
            await asyncio.sleep(_SIGNAL_S)  # raises CancelledError if Ctrl-C has ended the daemon
            said = str(error).removesuffix(": None")  # the suffix means that the daemon ended without a message
            if _UNREACHED in said:
                raise NobodyAnswers(
                    f"no node answers at {', '.join(others)}: is this machine online, is the coordinator running, is "
                    "its port open? If it has moved, its organiser has a new invite"
                ) from None
            raise HostError(f"libp2p does not start (listen {', '.join(listen)}): {said}") from None
        dht_clock.CLOCK.join()
        guard = RecordGuard(key)
        try:
            dht = await DHTNode.create(
                p2p=p2p,
                node_id=DHTID.from_bytes(node_id_of(PeerID.from_base58(identity.peer_id))),
                record_validator=guard,
                num_replicas=5,
                cache_locally=False,
                cache_on_store=False,
                cache_nearest=0,  # a node stores a record only if the record's owner sends it
            )
            difference = await _enter(dht, others)
        except BaseException as error:
            dht_clock.CLOCK.leave()
            await p2p.shutdown()
            sockets.remove()
            if isinstance(error, RuntimeError | OSError | P2PDaemonError) and not isinstance(error, HostError):
                raise HostError(f"the DHT does not start: {error}") from None
            raise
        host = cls(identity, p2p, dht, listen, guard, announced=bool(announce))
        host.clock = difference
        return host

    @property
    def daemon_pid(self) -> int:
        return self._p2p.process.pid

    @property
    def socket_folder(self) -> Path:
        """The folder of the sockets between this process and its daemon."""
        return self._p2p.sockets.path

    async def addresses(self) -> list[str]:
        """At most 16 multiaddresses that others can dial now, best first, each ending in /p2p/ and our peer id.

        They are the announced addresses if there are any, else those at which this machine seems reachable. Raises
        HostError if the machine has no address at all, not even a loopback one; P2PDaemonError.
        """
        try:
            visible = [str(address) for address in await self._p2p.get_visible_maddrs(latest=True)]
        except ValueError:  # the daemon reports none
            raise HostError(
                f"this machine has no address for {', '.join(self.listen)}: connect it to a network, or turn on its "
                "loopback interface, such as with `ip link set lo up`"
            ) from None
        return visible if self._announced else told(self.listen, visible, self.peer_id)

    async def connect(self, peer_id: str, maddrs: Sequence[str], timeout: float = DIAL_TIMEOUT_S) -> None:
        """Make sure there is a connection to a peer. Raises DialError, AddressError."""
        await self._daemon.connect(peer_id, maddrs, timeout)

    async def open_stream(self, peer_id: str, protocol: str, timeout: float = DIAL_TIMEOUT_S) -> Stream:
        """Open a stream to a peer. Raises DialError."""
        stream = await self._daemon.open_stream(peer_id, protocol, timeout)
        self.reached.add(peer_id)
        return stream

    def protect(self, peer_id: str) -> None:
        """Have the daemon keep the connection to this peer when it closes others because there are too many."""
        self._daemon.protect(peer_id)

    def disconnect(self, peer_id: str) -> None:
        """Close the connection to a peer, with all of its streams."""
        self._daemon.disconnect(peer_id)

    def shut_out(self, peer_ids: Collection[str]) -> None:
        """Ban these peers from our DHT node, and only these: the list replaces the previous one."""
        self._guard.banned = frozenset(peer_ids)

    async def handle_streams(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler(stream, peer id)` for each incoming stream; the stream is closed when the handler returns."""
        await self._daemon.handle(protocol, handler)

    async def close(self) -> None:
        """Stop the DHT node and the daemon. Safe to call twice, and after the daemon died."""
        for watch in self._watches:
            watch.cancel()
        self.flood_guard.close()
        if not self._closed:
            self._closed = True
            dht_clock.CLOCK.leave()
        await self._daemon.close()
        self.dht.is_alive = False  # instead of dht.shutdown(), which only unregisters, and hangs if the daemon is gone
        await self._p2p.shutdown()
        self._p2p.sockets.remove()

    async def _watch_sockets(self) -> None:
        reason = await self._p2p.sockets.until_cleaned()
        if not self.died.done():
            self.died.set_result(reason)

    async def _watch_daemon(self) -> None:
        code = await self._p2p.process.wait()
        if not self.died.done():
            self.died.set_result(f"the libp2p daemon ended with code {code}")


async def _refuse_taken(listen: Sequence[str]) -> None:
    """Raise PortTaken if a port is in use: two daemons could share it, and each would get half of the connections."""
    for address in listen:
        parts = dict(addresses.components(address))
        host, port = parts.get("ip4") or parts.get("ip6"), int(parts.get("tcp", 0))
        until = asyncio.get_running_loop().time() + _FREED_S
        while host is not None and port and _is_taken(host, port):
            if asyncio.get_running_loop().time() >= until:
                raise PortTaken(f"port {port} of {host} is in use on this machine: choose another --port")
            await asyncio.sleep(0.1)


def _is_taken(host: str, port: int) -> bool:
    return bound(host, port) == errno.EADDRINUSE


async def _enter(dht: DHTNode, entries: Sequence[str]) -> dht_clock.Difference:
    """Join the DHT through the bootstrap nodes and adopt their time. Returns how their clocks differ from ours.

    A node that refuses us as a non-member counts as reached: its handshake will give the reason. Raises Unresponsive.
    """

    async def ahead(peer_id: str) -> float | None:
        began = dht_clock.get_dht_time()
        peer = PeerID.from_base58(peer_id)
        stub = dht.protocol.get_stub(peer)
        try:
            answer = await stub.rpc_ping(dht_pb2.PingRequest(peer=dht.protocol.node_info), timeout=_ENTRY_TIMEOUT_S)
        except P2PHandlerError:
            return None
        if answer.peer.node_id:
            await dht.protocol.update_routing_table(DHTID.from_bytes(answer.peer.node_id), peer)
        return float(answer.dht_time) - (began + dht_clock.get_dht_time()) / 2

    peers = {peer for peer in (addresses.split_peer(address)[1] for address in entries) if peer is not None}
    answers = await asyncio.gather(*(ahead(peer) for peer in peers), return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if peers and len(failures) == len(answers):
        why = str(failures[0]) or f"no answer in {_ENTRY_TIMEOUT_S:g} s"
        raise Unresponsive(
            f"none of the bootstrap addresses answers ({', '.join(entries)}): {why}; is the coordinator running?"
        )
    difference = dht_clock.CLOCK.correct(answer for answer in answers if isinstance(answer, float))
    if any(isinstance(answer, float) for answer in answers):
        looking = asyncio.ensure_future(dht.find_nearest_nodes([dht.node_id]))
        await asyncio.wait((looking,), timeout=_NEIGHBOURS_S)  # after the timeout, the search goes on in the background
    return difference


__all__ = ["DEFAULT_LISTEN", "DialError", "Host", "HostError", "NobodyAnswers", "PortTaken", "Unresponsive"]
