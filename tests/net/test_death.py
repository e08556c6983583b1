"""How fast the end of another process is noticed: SIGKILL of the process, and of its libp2p daemon alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm.net.bulk import BulkError
from swarm.net.network import Network
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, PassId, StepNumber, Term

DEADLINE_S = 60.0
NOTICED_WITHIN_S = 10.0
"""Measured: 10-40 ms on an idle host. A daemon that waits for its client's silence takes 30 s."""

OTHER = """
import asyncio, sys, uvloop
from pathlib import Path
from authority import Authority
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.network import Network
from swarm.net.observer import NetworkObserver
from swarm.protocol.ids import Actor

async def main():
    host = await Host.create(Path(sys.argv[1]), sys.argv[4:] or ["/ip4/127.0.0.1/tcp/0"])
    me = Actor(host.peer_id, int(sys.argv[2]))
    class Echo(NetworkObserver):
        def message(self, sender, message):
            network.send(sender, message)
        def link_up(self, actor):
            print(actor)
    network = Network(
        host,
        me,
        Authority().door(sys.argv[3]),
        Role.PEER,
        Echo(),
        max_payload=0,
        reconnect_grace_s=0.2,
        step_s=60.0,
        certificate=Authority().certificate(sys.argv[3], host.peer_id),
    )
    await network.start()
    print(host.peer_id, host.daemon_pid, *await host.addresses(), flush=True)
    print(await host.died, flush=True)

uvloop.run(main())
"""


class Other:
    """Another process that echoes every message."""

    def __init__(self, process: asyncio.subprocess.Process, line: str, incarnation: int) -> None:
        self.process = process
        peer, daemon, *self.addresses = line.split()
        self.daemon = int(daemon)
        self.actor = Actor(peer, incarnation)

    @classmethod
    async def start(cls, home: Path, incarnation: int, *listen: str) -> Other:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", OTHER, str(home), str(incarnation), "ab" * 32, *listen),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            return cls(process, (await process.stdout.readline()).decode(), incarnation)


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Other]:
    started = await Other.start(tmp_path / "other", 1)
    yield started
    with contextlib.suppress(ProcessLookupError):
        started.process.kill()
    await started.process.wait()


async def talk(pair: Any, network: Network, other: Other) -> None:
    """Exchange a message, so that control streams are open both ways."""
    hello = m.Released(PassId(Term(1), StepNumber(1)), 1, ())
    network.learn(other.actor, other.addresses)
    network.send(other.actor, hello)
    assert await pair.one.next_of(pair.one.messages) == (other.actor, hello)
    assert await pair.one.next_of(pair.one.up) == other.actor


async def test_a_killed_daemon_is_noticed_on_both_sides(pair: Any, other: Other) -> None:
    network, _ = await pair.start()
    await talk(pair, network, other)
    start = time.monotonic()
    os.kill(other.daemon, signal.SIGKILL)
    actor, _reason = await pair.one.next_of(pair.one.lost)
    assert actor == other.actor
    assert time.monotonic() - start < NOTICED_WITHIN_S
    assert other.process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        while b"daemon ended" not in (line := await other.process.stdout.readline()):
            assert line, "the process ended without a word about its daemon"
    assert time.monotonic() - start < NOTICED_WITHIN_S


async def test_our_own_daemons_death_resolves_died(pair: Any) -> None:
    await pair.start()
    host = pair.hosts[0]
    os.kill(host.daemon_pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        assert "daemon ended" in await host.died


async def test_a_killed_process_is_noticed_takes_its_daemon_with_it_and_is_met_again_where_it_was(
    pair: Any, other: Other, tmp_path: Path
) -> None:
    """The next one is started at once, on its port and with its identity."""
    network, _ = await pair.start()
    await talk(pair, network, other)
    start = time.monotonic()
    other.process.send_signal(signal.SIGKILL)
    actor, _reason = await pair.one.next_of(pair.one.lost)
    assert actor == other.actor
    assert time.monotonic() - start < NOTICED_WITHIN_S
    await other.process.wait()
    (address,) = other.addresses
    reborn = await Other.start(tmp_path / "other", 2, address.rsplit("/p2p/", 1)[0])
    try:
        assert reborn.addresses == other.addresses and reborn.actor.peer == other.actor.peer
        await pair.one.until(lambda: not running(other.daemon))
        network.learn(reborn.actor, reborn.addresses)
        async with asyncio.timeout(DEADLINE_S):
            while True:  # the dialler backs off for a few seconds from an address that has just refused
                try:
                    await network.bulk.fetch(reborn.actor, b"anything")
                except BulkError:
                    break  # it was met, and serves nothing
                except ConnectionError:
                    await asyncio.sleep(0.05)
        await talk(pair, network, reborn)
    finally:
        reborn.process.kill()
        await reborn.process.wait()


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
