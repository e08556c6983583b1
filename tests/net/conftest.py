"""Real libp2p hosts in the test's own loop, on the loopback interface."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop
from authority import Authority
from hivemind.proto import p2pd_pb2

from swarm.net import send_buffers, thresholds
from swarm.net.handshake import Channel, Role
from swarm.net.host import Host
from swarm.net.identity import peer_id_bytes
from swarm.net.network import Network
from swarm.net.observer import NetworkObserver
from swarm.net.process_card import ProcessCard
from swarm.net.run_key import RunKey
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor

RUN = "ab" * 32
DEADLINE_S = 60.0
MAX_PAYLOAD = 64 << 20
GRACE_S = 0.2
AUTHORITY = Authority()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}  # what a peer runs


class Recorder:
    """A driver that writes down what its network tells it, and lets a test wait for the next thing of a kind."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[Actor, m.Message]] = asyncio.Queue()
        self.lost: asyncio.Queue[tuple[Actor, str]] = asyncio.Queue()
        self.up: asyncio.Queue[Actor] = asyncio.Queue()
        self.refused_frames: asyncio.Queue[tuple[Actor, str]] = asyncio.Queue()
        self.refused_peers: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.slowed: asyncio.Queue[tuple[Actor, float]] = asyncio.Queue()
        self.dropped: asyncio.Queue[tuple[Actor, int, str]] = asyncio.Queue()
        self.broken: asyncio.Queue[tuple[Actor, Channel, str]] = asyncio.Queue()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state that no callback tells, within the deadline."""
        async with asyncio.timeout(DEADLINE_S):
            while not reached():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def next_of(self, queue: asyncio.Queue[Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await queue.get()

    def network(self, host: Host, incarnation: int = 1, run: str = RUN, role: Role = Role.PEER, **more: Any) -> Network:
        on_message = more.pop("on_message", lambda sender, message: self.messages.put_nowait((sender, message)))
        observer = _Recording(self, on_message, more.pop("check_frame", None), more.pop("on_undelivered", None))
        observer.expects = more.pop("expects", observer.expects)  # type: ignore[method-assign]
        given = {"max_payload": MAX_PAYLOAD, "reconnect_grace_s": GRACE_S, "step_s": 60.0}
        if role is Role.COORDINATOR:
            given["certificate"] = ProcessCard.of(run, incarnation, ()).sealed(host.identity)
        else:
            given["certificate"] = AUTHORITY.certificate(run, host.peer_id)
        door = AUTHORITY.door(run, *more.pop("coordinators", ()))
        return Network(host, Actor(host.peer_id, incarnation), door, role, observer, **given | more)


class _Recording(NetworkObserver):
    def __init__(self, recorder: Recorder, on_message: Any, check_frame: Any, on_undelivered: Any) -> None:
        self._recorder = recorder
        self._message, self._check, self._undelivered = on_message, check_frame, on_undelivered

    def message(self, sender: Actor, message: m.Message) -> Any:
        return self._message(sender, message)

    def check_frame(self, frame: m.WithPayload) -> None:
        if self._check is not None:
            self._check(frame)

    def link_lost(self, actor: Actor, reason: str) -> None:
        self._recorder.lost.put_nowait((actor, reason))

    def link_up(self, actor: Actor) -> None:
        self._recorder.up.put_nowait(actor)

    def frame_refused(self, sender: Actor, reason: str, count: int) -> None:
        self._recorder.refused_frames.put_nowait((sender, reason))

    def member_slowed(self, actor: Actor, wait_s: float) -> None:
        self._recorder.slowed.put_nowait((actor, wait_s))

    def peer_refused(self, peer: str, reason: str) -> None:
        self._recorder.refused_peers.put_nowait((peer, reason))

    def stranger_refused(self, peer: str, reason: str) -> None:
        self.peer_refused(peer, reason)

    def dropped(self, actor: Actor, count: int, reason: str) -> None:
        self._recorder.dropped.put_nowait((actor, count, reason))

    def stream_broken(self, actor: Actor, channel: Channel, reason: str) -> None:
        self._recorder.broken.put_nowait((actor, channel, reason))

    def undelivered(self, actor: Actor, messages: tuple[m.Message, ...]) -> None:
        if self._undelivered is not None:
            self._undelivered(actor, messages)


@pytest.fixture
def socket_failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors of the next two looks at a daemon's sockets, that are still to come: no free descriptor, forbidden."""
    failures = [errno.EMFILE, errno.EPERM]

    def fail(*_: object) -> Iterator[socket.socket]:
        raise OSError(failures.pop(0), "no")

    for user in (send_buffers, thresholds):
        monkeypatch.setattr(user, "tcp_sockets", fail)
    return failures


@pytest.fixture
def make_recorder() -> type[Recorder]:
    return Recorder


MakeHost = Callable[..., Awaitable[Host]]


@pytest_asyncio.fixture
async def make_host(tmp_path: Path) -> AsyncIterator[MakeHost]:
    hosts: list[Host] = []

    async def make(
        initial_peers: Sequence[str] = (), listen: str = "/ip4/127.0.0.1/tcp/0", key: RunKey | None = None
    ) -> Host:
        path = tmp_path / f"home{len(hosts)}" / "identity"
        hosts.append(await Host.create(path, [listen], initial_peers, key=key))
        return hosts[-1]

    yield make
    for host in hosts:
        await host.close()


class Pair:
    """Two hosts with a network each that know each other."""

    def __init__(self, one: Host, two: Host) -> None:
        self.hosts = (one, two)
        self.one, self.two = Recorder(), Recorder()
        self.networks: list[Network] = []

    async def start(self, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> list[Network]:
        for host, recorder, more in zip(self.hosts, (self.one, self.two), (first, second), strict=True):
            network = recorder.network(host, **(more or {}))
            await network.start()
            self.networks.append(network)
        a, b = self.networks
        a.learn(b.me, await self.hosts[1].addresses())
        b.learn(a.me, await self.hosts[0].addresses())
        return self.networks

    async def cut(self) -> None:
        """Break every connection between the two, as a router that restarts would."""
        one, two = self.hosts
        request = p2pd_pb2.DisconnectRequest(peer=peer_id_bytes(two.peer_id))
        stream, _ = await one._daemon._request(
            p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=request), "disconnect", DEADLINE_S
        )
        stream.close()


@pytest_asyncio.fixture
async def pair(make_host: MakeHost) -> AsyncIterator[Pair]:
    made = Pair(await make_host(), await make_host())
    yield made
    for network in made.networks:
        await network.close()
