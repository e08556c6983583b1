"""Connections that do nothing, and hosts that take all of them: nobody else is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from served_dashboard import dashboard, generated_home
from starlette.responses import Response

from benchmarks.generated_log import Shape
from peers.dashboard.connections import (
    KEEP_ALIVE_S,
    MOST_CONNECTIONS,
    REQUEST_S,
    UNREAD_S,
    Connection,
    Connections,
    host_of,
)

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
TINY = Shape(peers=4, stages=2, hours=0.05, step_seconds=20)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A server of three pages: / answers at once, /never answers never, /large has 32 MB."""

    def __init__(self, most: int) -> None:
        self.clock = Clock()
        self.connections = Connections(most, self.clock)
        self.asked = 0
        self.received = 0
        """Bytes received on all connections."""
        self._port = 0
        self._writers: list[asyncio.StreamWriter] = []  # one that is forgotten closes its connection

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Site]:
        protocol = cast("type[asyncio.Protocol]", self.connections.protocol)
        config = uvicorn.Config(self._page, interface="asgi3", http=protocol, lifespan="off", log_level="error")
        config.load()
        state, loop = uvicorn.server.ServerState(), asyncio.get_running_loop()

        def connection() -> Connection:
            made = self.connections.protocol(config=config, server_state=state, app_state={})
            take = made.data_received

            def counted(data: bytes) -> None:
                take(data)
                self.received += len(data)

            made.data_received = counted  # type: ignore[method-assign]
            return made

        server = await loop.create_server(connection, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for each in list(self.connections._all):
                each.drop()

    async def _page(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        if scope["path"] == "/never":
            await receive()
            await receive()  # the viewer has left
            return
        size = 32 << 20 if scope["path"] == "/large" else 2
        await Response(b"x" * size)(scope, receive, send)

    async def open(self, sends: bytes = b"", host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, Any]:
        """A connection from the address `host`, once the server has it and what was sent."""
        received = self.received
        reader, writer = await self.knock(host)
        writer.write(sends)
        here = writer.get_extra_info("sockname")
        await until(lambda: here in [each.client for each in self.connections._all])
        await until(lambda: self.received == received + len(sends))
        return reader, writer

    async def knock(self, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(host, 0), limit=1 << 10)
        self._writers.append(made[1])
        return made


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 -- the server runs in the same loop
            await asyncio.sleep(0)


def scene(most: int = 4) -> Any:
    return Site(most).served()


async def _ended(reader: asyncio.StreamReader) -> bool:
    """True: the server has closed the connection. Waits until it has."""
    try:
        while await asyncio.wait_for(reader.read(1 << 16), 20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", ASK + b"G", b"POST /never HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"],
)
def test_a_request_that_stays_incomplete_ends_its_connection(sent: bytes) -> None:
    async def play() -> None:
        async with scene() as site:
            reader, writer = await site.open(sent)
            if sent.startswith(ASK):
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\nxx")
            site.clock.now += REQUEST_S - 0.1
            site.connections.drop_stuck()
            assert len(site.connections) == 1
            if sent:
                writer.write(b"G")  # one more byte is no reason to wait longer
                await writer.drain()
            site.clock.now += 0.2
            site.connections.drop_stuck()
            assert len(site.connections) == 0 and await _ended(reader)

    asyncio.run(play())


def test_a_connection_that_is_answered_or_waits_for_its_next_request_stays() -> None:
    async def play() -> None:
        async with scene() as site:
            reader, writer = await site.open(ASK)
            await reader.readuntil(b"\r\n\r\nxx")
            await site.open(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(3):
                site.clock.now += KEEP_ALIVE_S
                site.connections.drop_stuck()
            assert len(site.connections) == 2, "uvicorn closes it after its own time"
            writer.write(ASK)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nxx")

    asyncio.run(play())


def test_a_viewer_that_reads_nothing_is_dropped_and_a_slow_one_is_not() -> None:
    async def play() -> None:
        async with scene() as site:
            reader, _ = await site.open(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            (connection,) = site.connections._all
            for _ in range(5):
                await until(lambda: connection.transport.get_write_buffer_size() > 0)
                site.connections.drop_stuck()
                size = connection.transport.get_write_buffer_size()
                while connection.transport.get_write_buffer_size() >= size:
                    assert await reader.read(1 << 16)
                    await asyncio.sleep(0)
                site.clock.now += UNREAD_S - 1
                site.connections.drop_stuck()
                assert len(site.connections) == 1
            for _ in range(2):
                site.clock.now += UNREAD_S - 1
                site.connections.drop_stuck()
            assert len(site.connections) == 0 and await _ended(reader)

    asyncio.run(play())


def test_one_host_keeps_out_nobody() -> None:
    never = b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n"

    async def play() -> None:
        async with scene(most=4) as site:
            first = [await site.open(never) for _ in range(4)]
            refused, _ = await site.knock()
            assert b"503" in await refused.readline(), "its own host has all places, and uses them"
            (other, _) = await site.open(ASK, host="127.0.0.2")
            assert b"200 OK" in await other.readuntil(b"\r\n\r\nxx")
            assert await _ended(first[3][0]) and not any(reader.at_eof() for reader, _ in first[:3])
            (third, _) = await site.open(ASK, host="127.0.0.3")
            assert b"200 OK" in await third.readuntil(b"\r\n\r\nxx") and len(site.connections) == 4

    asyncio.run(play())


def test_the_longest_waiting_connection_makes_room() -> None:
    async def play() -> None:
        async with scene(most=3) as site:
            opened = []
            for sends in (b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n", b"", b"GET / HT"):
                opened.append(await site.open(sends))
                site.clock.now += 1
            reader, _ = await site.open(ASK)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nxx")
            assert await _ended(opened[1][0]) and not opened[0][0].at_eof() and not opened[2][0].at_eof()

    asyncio.run(play())


def test_what_counts_as_one_host() -> None:
    assert host_of("::ffff:192.0.2.7") == host_of("192.0.2.7") != host_of("192.0.2.8")
    assert host_of("2001:db8::1") == host_of("2001:db8::ffff:2") != host_of("2001:db8:0:1::1")
    assert host_of("fe80::1%eth0") == host_of("fe80::2%eth0")


def test_as_many_idle_connections_as_there_may_be_keep_out_nobody(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", TINY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with dashboard(home) as shown, contextlib.ExitStack() as stack:
            for number in range(MOST_CONNECTIONS):
                idle = stack.enter_context(socket.create_connection(("127.0.0.1", shown.port), 30))
                if number % 2:
                    idle.sendall(b"GET / HT")
            assert shown.get("/api/v1/session")["access"] == "read"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
