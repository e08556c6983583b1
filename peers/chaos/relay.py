"""A process in front of all hosts of a swarm on the loopback interface, for users without root.

    python -m peers.chaos.relay SEED     (by internet.py; orders are JSON lines on stdin, answers on stdout)

Every host is reached through a port of the relay, and announces no other port. The kernel tells which process owns the
other end of a connection, and so which host dials. Bytes of a connection pass three pipes, as packets do in the
forwarder: delayed and limited, but never lost, because TCP carries them. A cut link carries no bytes, and does not tell
either end that the other end has closed the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil

from peers.chaos.pipe import Pipe, Shape
from peers.launching.process import die_with_parent

_CHUNK = 16_384
_IN_FLIGHT = 262_144
"""Maximum number of bytes of one connection and direction on their way, in addition to those that the link's rate keeps
there.
"""


@dataclass
class RelayedHost:
    name: str
    port: int
    """The port on which its process listens."""
    up: Pipe
    down: Pipe
    nat: bool = False
    """True if no other host can open a connection to this host."""
    pids: list[int] = field(default_factory=list)


class Relay:
    """Carries the connections of all hosts. `order` changes the internet."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._hosts: dict[str, RelayedHost] = {}
        self._links: dict[tuple[str, str], Pipe] = {}
        self._healed = asyncio.Event()
        self._servers: list[asyncio.Server] = []

    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one order; returns its answer. Raises KeyError, OSError."""
        match order["do"]:
            case "host":
                shapes = Shape(**order["up"]), Shape(**order["down"])
                return await self._add(order["name"], order["port"], *shapes, order["nat"])
            case "started":
                self._hosts[order["name"]].pids.append(order["pid"])
            case "link":
                self._link(order["from"], order["to"]).shape = Shape(**order["shape"])
            case "cut" | "heal":
                for source, target in order["pairs"]:
                    self._link(source, target).cut = order["do"] == "cut"
                self._healed.set()
                self._healed = asyncio.Event()
            case unknown:
                raise KeyError(unknown)
        return {}

    # ------------------------------------------------------------

    async def _add(self, name: str, port: int, up: Shape, down: Shape, nat: bool) -> dict[str, Any]:
        host = self._hosts[name] = RelayedHost(name, port, self._pipe(up), self._pipe(down), nat)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._carry(host, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return {"front": server.sockets[0].getsockname()[1]}

    def _pipe(self, shape: Shape) -> Pipe:
        return Pipe(shape, self._random, lossless=True)

    def _link(self, source: str, target: str) -> Pipe:
        pipe = self._links.get((source, target))
        if pipe is None:
            pipe = self._links[source, target] = self._pipe(Shape())
        return pipe

    async def _carry(self, to: RelayedHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to `to`, until both of its ends have ended."""
        if to.nat:
            return
        source = await asyncio.to_thread(self._who_dials, writer.get_extra_info("peername")[1])
        if source is None:  # it is gone meanwhile
            return
        there, back = self._link(source.name, to.name), self._link(to.name, source.name)
        await self._wait_healed(there)
        await self._wait_healed(back)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer, (source.up, there, to.down)))
                tasks.create_task(self._pump(far_reader, writer, (to.up, back, source.down)))
        except* OSError:
            pass  # one end broke: both do
        finally:
            far_writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipes: tuple[Pipe, Pipe, Pipe]
    ) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT // _CHUNK)

        async def deliver() -> None:
            while True:
                at, chunk = await on_the_way.get()
                await asyncio.sleep(at - loop.time())
                await self._wait_healed(pipes[1])
                if not chunk:
                    writer.write_eof()
                    return
                writer.write(chunk)
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            chunk = b"-"
            while chunk:
                try:
                    chunk = await reader.read(_CHUNK)
                except ConnectionError:
                    await self._wait_healed(pipes[1])
                    raise
                at = loop.time()
                for pipe in pipes:
                    at = pipe.admit(at, len(chunk)) or at
                await on_the_way.put((at, chunk))

    async def _wait_healed(self, pipe: Pipe) -> None:
        while pipe.cut:
            await self._healed.wait()

    def _who_dials(self, port: int) -> RelayedHost | None:
        """Return the host whose process or daemon has a connection from this port. Called in a thread."""
        for host in list(self._hosts.values()):
            for pid in host.pids[-1:]:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    for each in (*process.children(), process):
                        with contextlib.suppress(psutil.Error):
                            if any(c.laddr and c.laddr.port == port for c in each.net_connections("tcp4")):
                                return host
        return None


async def _run(relay: Relay) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        try:
            answer = await relay.order(json.loads(line))
        except OSError as error:
            answer = {"error": str(error)}
        os.write(1, json.dumps(answer).encode() + b"\n")


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process

    async def run() -> None:
        await _run(Relay(int(sys.argv[1])))

    asyncio.run(run())


if __name__ == "__main__":
    main()
