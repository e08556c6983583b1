"""A flood from one address does not reach a host's daemon, and others do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Awaitable, Callable

import pytest

from swarm.net import callers, flood_guard
from swarm.net.callers import Callers, Flood
from swarm.net.host import Host

DEADLINE_S = 60.0
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's interface is Linux's")


async def answers(host: Host, source: str) -> bool:
    """Whether the host's daemon says something to a new TCP connection. It tells its protocol at once."""
    port = int(host.listen[0].rpartition("/")[2])
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            said = await reader.read(1)
            writer.close()
            return bool(said)
    except (TimeoutError, OSError):
        return False


async def test_an_address_that_floods_is_kept_away_for_a_while(
    make_host: Callable[..., Awaitable[Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "BURST", 20)
    monkeypatch.setattr(callers, "RATE", 1000.0)
    monkeypatch.setattr(flood_guard, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(flood_guard, "SHARE", 1.0)
    monkeypatch.setattr(flood_guard, "BLOCKED_S", 3.0)
    monkeypatch.setattr(flood_guard, "MANY", 1)
    monkeypatch.setattr(callers, "exempt", lambda address: str(address) == "127.0.0.1")
    host = await make_host()
    floods: asyncio.Queue[tuple[Flood, str]] = asyncio.Queue()
    host.flood_guard.on_flood = lambda flood, _, why_not: floods.put_nowait((flood, why_not))
    assert await answers(host, "127.0.0.2")
    port = int(host.listen[0].rpartition("/")[2])
    with contextlib.ExitStack() as held:
        async with asyncio.timeout(DEADLINE_S):
            while floods.empty():
                for _ in range(100):
                    caller = held.enter_context(socket.socket())
                    caller.setblocking(False)
                    caller.bind(("127.0.0.2", 0))
                    with contextlib.suppress(BlockingIOError):
                        caller.connect(("127.0.0.1", port))
                await asyncio.sleep(0.05)
        flood, why_not = floods.get_nowait()
        assert str(flood.block) == "127.0.0.2/32" and flood.connections > 20 and not why_not
        assert not await answers(host, "127.0.0.2")
        assert all([await answers(host, "127.0.0.1") for _ in range(20)])
        other = await make_host()
        await other.connect(host.peer_id, await host.addresses())
    async with asyncio.timeout(DEADLINE_S):
        while not await answers(host, "127.0.0.2"):
            pass  # it has waited


async def test_a_system_that_does_not_allow_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    guard = flood_guard.FloodGuard(["/ip4/127.0.0.1/tcp/9"], Callers(lambda _: False))
    guard.on_flood = lambda *what: told.append(what)
    monkeypatch.setattr(sys, "platform", "darwin")
    flood = Flood(callers.block_of(callers.ipaddress.ip_address("203.0.113.7")), 400, 2.0, 3)
    guard._block([flood], 0.0)
    assert told == [(flood, 240.0, "darwin does not let a program choose among the sockets of a port")]
