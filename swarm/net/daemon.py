"""The libp2p daemon `p2pd`: a child process, controlled directly where hivemind's client is not sufficient.

libp2p's own DHT is off: it would tell every connecting peer the ids and addresses of all connected peers. So the daemon
can dial a peer only at addresses that we give to it. Its relay service is off too.

hivemind starts the daemon and runs its DHT over it. Streams, dialling and listening go through this file for two
reasons: we need streams as BufferedProtocols, which read payloads without a copy, and `/p2p/` components of addresses
in the daemon's encoding (see addresses.py).

The daemon ends within milliseconds after the persistent connection of hivemind's client closes. So the daemon ends
with this process, even after SIGKILL, and a supervisor can restart a peer at once with the same identity and port.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import base58
from google.protobuf.message import DecodeError, Message
from hivemind.p2p import P2P
from hivemind.proto import p2pd_pb2

from swarm.cores import usable_cores
from swarm.net import addresses
from swarm.net.identity import peer_id_bytes
from swarm.net.sockets import SocketFolder
from swarm.net.stream import Stream, StreamClosed

MEMBER_WEIGHT = 100
"""Weight of members' connections in the daemon's connection manager. Other connections have weight 0 and are closed
first.
"""
CONTROL_S = 5.0
"""Seconds within which the daemon must answer a control request."""
LINGER_S = 10.0
MAX_LINGERING = 256
"""Largest number of finished streams that wait, for a limited time, until the other side closes them."""

StreamHandler = Callable[[Stream, str], Awaitable[None]]
"""Called once for each incoming stream, with the peer id that libp2p has authenticated. The handler owns the stream."""

_MAX_REPLY = 1 << 20
_ATTEMPT = re.compile(r"\* \[([^\]]+)\] (.+)")


class DialError(ConnectionError):
    """A peer cannot be reached; the message gives the reason."""


class NotReady(DialError):
    """The peer's daemon answers but does not know our protocols: the peer is starting, or runs another program."""


_CONFIGURATION = Path(__file__).with_name("p2pd.json")
"""The daemon's settings that no flag can change."""
_START = """import os, sys
os.setsid()  # out of reach of Ctrl-C
os.environ.setdefault("GOMAXPROCS", "{cores}")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts the daemon. It counts all cores of the machine, also those that the quota of a container does not give it."""


DAEMON_VARIABLE = "SWARM_PEER_P2PD"
"""Name of the environment variable with the path of the daemon. Unset or empty: hivemind's daemon."""


def _named_daemon() -> str:
    """The path in the environment, empty if there is none. Raises OSError if it is not that of a program."""
    path = os.environ.get(DAEMON_VARIABLE, "")
    if path and not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise OSError(
            f"the environment variable {DAEMON_VARIABLE} is {path!r}, which is not a program that this user may run: "
            "name the file of a libp2p daemon, or unset the variable to use the one that comes with hivemind"
        )
    return path


class DaemonP2P(P2P):
    """hivemind's P2P with an additional flag, sockets in a private folder, and a daemon that Ctrl-C does not end."""

    sockets: SocketFolder

    @classmethod
    async def start(cls, sockets: SocketFolder, **options: Any) -> DaemonP2P:
        """Like `create`, with the sockets in `sockets`; `create` puts them into /tmp under guessable names."""
        kind: Any = type(cls.__name__, (cls,), {"_UNIX_SOCKET_PREFIX": f"/unix{sockets.path}/", "sockets": sockets})
        started: DaemonP2P = await kind.create(**options)
        return started

    @staticmethod
    def _make_process_args(*args: Any, **kwargs: Any) -> list[str]:
        # without this flag a peer behind NAT waits minutes for four relay candidates instead of using the given one
        kwargs["relayDiscovery"] = 0
        # With relays enabled, as in its default configuration, the daemon relays circuits for everybody, whatever
        # -relayService says, and spends most of its start on a table of all networks for that. No flag disables them.
        kwargs["relay"] = 0
        kwargs["f"] = _CONFIGURATION
        kwargs.pop("dhtServer")
        # Ctrl-C signals the whole process group of the terminal, but a peer that leaves cleanly needs its connections
        # for some more seconds: so the daemon gets its own session
        start = _START.format(cores=math.ceil(usable_cores()))
        daemon, *options = P2P._make_process_args(*args, **kwargs)
        return [sys.executable, "-I", "-S", "-c", start, _named_daemon() or daemon, *options]

    @property
    def process(self) -> asyncio.subprocess.Process:
        child: asyncio.subprocess.Process = self._child
        return child


class Daemon:
    """Control of a running daemon over its Unix socket."""

    def __init__(self, p2p: DaemonP2P) -> None:
        self._control_path = p2p.daemon_listen_maddr["unix"]
        self._sockets = p2p.sockets
        self._server: asyncio.Server | None = None
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lingering = 0

    async def connect(self, peer_id: str, maddrs: Sequence[str], timeout: float) -> None:
        """Dial a peer at the given addresses, without their last /p2p/ component. Raises DialError, AddressError."""
        targets = [addresses.encode(addresses.split_peer(a)[0]) for a in maddrs]
        request = p2pd_pb2.ConnectRequest(peer=peer_id_bytes(peer_id), addrs=targets, timeout=max(1, round(timeout)))
        stream = await self._request(
            p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request), f"dial {peer_id}", timeout
        )
        stream[0].close()

    async def open_stream(self, peer_id: str, protocol: str, timeout: float) -> Stream:
        """Open a stream to a peer; dial the peer if it is not connected. Raises DialError."""
        request = p2pd_pb2.StreamOpenRequest(
            peer=peer_id_bytes(peer_id), proto=[protocol], timeout=max(1, round(timeout))
        )
        stream, _ = await self._request(
            p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request), f"reach {peer_id}", timeout
        )
        return stream

    def protect(self, peer_id: str) -> None:
        """Exempt the present connection to a peer from being closed when there are too many connections."""
        tag = p2pd_pb2.ConnManagerRequest(
            type=p2pd_pb2.ConnManagerRequest.TAG_PEER, peer=peer_id_bytes(peer_id), tag="member", weight=MEMBER_WEIGHT
        )
        self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=tag), f"protect {peer_id}")

    def disconnect(self, peer_id: str) -> None:
        """Close the connection to a peer, with all of its streams."""
        cut = p2pd_pb2.DisconnectRequest(peer=peer_id_bytes(peer_id))
        self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=cut), f"disconnect {peer_id}")

    def _ask(self, request: p2pd_pb2.Request, what: str) -> None:
        """Send a request whose answer nobody waits for. Nothing follows from a failure: the daemon is busy or gone."""

        async def ask() -> None:
            with contextlib.suppress(DialError):
                stream, _ = await self._request(request, what, CONTROL_S)
                stream.close()

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Register `handler` for every incoming stream of `protocol`; it replaces an earlier handler."""
        known = protocol in self._handlers
        self._handlers[protocol] = handler
        if known:
            return
        if self._server is None:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Incoming(self._accept), path=f"{self._sockets.path}/streams.sock"
            )
        where = f"{self._sockets.path}/streams.sock".encode()
        request = p2pd_pb2.StreamHandlerRequest(
            addr=b"\x90\x03" + addresses.varint(len(where)) + where,  # multiaddr /unix/…
            proto=[protocol],
            balanced=False,
        )
        stream, _ = await self._request(
            p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=request), f"serve {protocol}", 5.0
        )
        stream.close()

    async def close(self) -> None:
        """Stop accepting streams and cancel the running handlers."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, stream: Stream) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a stream handler failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    async def _serve(self, stream: Stream) -> None:
        try:
            info = p2pd_pb2.StreamInfo()
            await _read_message(stream, info)
            stream.origin = addresses.block_of(info.addr)
            await self._handlers[info.proto](stream, base58.b58encode(info.peer).decode())
            await self._until_taken(stream)
        except (StreamClosed, DecodeError):
            pass  # the other side gave up before it sent anything
        finally:
            stream.close()

    async def _until_taken(self, stream: Stream) -> None:
        """Wait for a limited time until the other side closes the stream.

        If we close first, the daemon closes the outgoing half, then finds the incoming half closed, and resets the
        stream. If the reset overtakes our last message, the other side never reads that message.
        """
        if self._lingering >= MAX_LINGERING:
            return
        self._lingering += 1
        try:
            async with asyncio.timeout(LINGER_S):
                await stream.wait_ended()
        except TimeoutError:
            pass
        finally:
            self._lingering -= 1

    async def _request(self, request: p2pd_pb2.Request, what: str, timeout: float) -> tuple[Stream, p2pd_pb2.Response]:
        stream: Stream | None = None
        try:
            async with asyncio.timeout(timeout):
                _, stream = await asyncio.get_running_loop().create_unix_connection(Stream, self._control_path)
                raw = request.SerializeToString()
                await stream.write(addresses.varint(len(raw)) + raw)
                response = p2pd_pb2.Response()
                await _read_message(stream, response)
        except TimeoutError:
            if stream is not None:
                stream.abort()
            raise DialError(f"cannot {what}: no answer in {timeout:g} s") from None
        except (OSError, DecodeError) as error:
            if stream is not None:
                stream.abort()
            raise DialError(f"cannot {what}: the libp2p daemon does not answer ({error})") from None
        except asyncio.CancelledError:
            if stream is not None:
                stream.abort()
            raise
        if response.type == p2pd_pb2.Response.ERROR:
            stream.abort()
            unknown = "protocols not supported" in response.error.msg
            raise (NotReady if unknown else DialError)(f"cannot {what}: {plain_reason(response.error.msg)}")
        return stream, response


def plain_reason(message: str) -> str:
    """A short form of libp2p's report of a failed dial: each outcome once, with the addresses that had it."""
    outcomes: dict[str, list[str]] = {}
    for where, account in _ATTEMPT.findall(message):
        outcomes.setdefault(account.rpartition(": ")[2], []).append(where)
    return "; ".join(f"{outcome} ({', '.join(places)})" for outcome, places in outcomes.items()) or message


class _Incoming(Stream):
    """An incoming stream, which passes itself to `accept` once it is connected."""

    def __init__(self, accept: Callable[[Stream], None]) -> None:
        super().__init__()
        self._announce = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._announce(self)


async def _read_message(stream: Stream, message: Message) -> None:
    """Read a protobuf message that the daemon has written: its length as a varint, then the message."""
    length = shift = 0
    while True:
        (byte,) = await stream.read_exactly(1)
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise DecodeError("the message length has more than four bytes")
    if length > _MAX_REPLY:
        raise DecodeError(f"the message has {length} bytes, which is too long")
    message.ParseFromString(await stream.read_exactly(length))
