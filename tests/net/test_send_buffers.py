"""The kernel queues little data of a daemon's connections. What that prevents: `slow-peer.toml` in tests/internet."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import IO

import pytest

from swarm.net.child_sockets import tcp_sockets
from swarm.net.host import Host
from swarm.net.send_buffers import NOTSENT_LOWAT, UNSENT, SendBuffers

DEADLINE_S = 30.0

CHILD = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dialled = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(server.getsockname()[1], flush=True)
accepted = None
for line in sys.stdin:
    if line == "accept\\n":
        accepted, _ = server.accept()
    print(*(s.getsockopt(socket.IPPROTO_TCP, 25) for s in (server, dialled, accepted) if s), flush=True)
"""


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a connection, and the port at which it listens."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(server.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(_end, process)
        yield process, int(_out(process).readline())


def test_connections_of_a_child_are_limited_those_too_that_it_accepts_later(
    child: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = child
    buffers = SendBuffers(process.pid)
    try:
        assert buffers.limit() == 2, "the listening socket and the connection, but not the UDP socket"
    except OSError as error:
        pytest.skip(f"this system does not let a process work on a child's sockets: {error}")
    assert buffers.limit() == 0, "nothing is new"
    with socket.create_connection(("127.0.0.1", port)):
        assert _asked(process, "accept") == [UNSENT] * 3
        assert buffers.limit() == 1
    process.kill()
    process.wait()
    with pytest.raises(OSError, match="No such"):
        buffers.limit()


async def test_all_connections_of_a_host_are_limited(make_host: Callable[..., Awaitable[Host]]) -> None:
    dialling, accepting = await make_host(), await make_host()
    await dialling.connect(accepting.peer_id, await accepting.addresses())
    async with asyncio.timeout(DEADLINE_S):
        for host in (dialling, accepting):
            while len(limits := _limits(host.daemon_pid)) < 2 or set(limits) != {UNSENT}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_it_ends_where_it_is_forbidden_and_goes_on_without_free_descriptors(socket_failures: list[int]) -> None:
    buffers = SendBuffers(os.getpid())
    async with asyncio.timeout(DEADLINE_S):
        await buffers.watch(every_s=0.0)
    assert not socket_failures and buffers.refused == "no"


def _limits(pid: int) -> list[int]:
    """The limits of all TCP sockets of a child process."""
    try:
        return [found.getsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT) for found in tcp_sockets(pid)]
    except OSError as error:
        pytest.skip(f"this system does not let a process work on a child's sockets: {error}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _asked(process: subprocess.Popen[str], what: str) -> list[int]:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    return [int(word) for word in _out(process).readline().split()]


def _out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
