"""How a peer comes in where nobody answers yet."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from authority import Authority
from hivemind.dht import DHTNode

from peers.run.home import Home
from peers.runtime.directory import LIFETIME_S
from peers.runtime.notebook import Notebook
from peers.stage import entrance
from peers.stage.admission import be_admitted_somewhere, found_again
from peers.stage.entrance import enter, patience_of
from peers.stage.patience import CoordinatorGone, HeardFinished, Patience
from swarm.events import CoordinatorAway, CoordinatorBack, Event, StillDialling
from swarm.net.daemon import DaemonP2P
from swarm.net.dht_clock import get_dht_time
from swarm.net.handshake import Role
from swarm.net.host import DEFAULT_LISTEN, DialError, Host, NobodyAnswers, Unresponsive
from swarm.net.identity import Identity
from swarm.net.invite import Invite
from swarm.net.records import PeerRecord, publish
from swarm.net.run_key import RunKey
from swarm.protocol.ids import Actor

RUN = "ab" * 32
LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def daemon() -> AsyncIterator[DaemonP2P]:
    """Reached by libp2p, but without a DHT node."""
    made = await DaemonP2P.create(host_maddrs=LOOPBACK, identity_path=None, nat_port_map=False)
    yield made
    await made.shutdown()


async def test_an_attempt_that_fails_while_the_peer_is_stopped_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering: list[asyncio.Task[Host]] = []

    async def create(*_: object, **__: object) -> Host:
        asyncio.get_running_loop().call_soon(entering.pop().cancel)
        raise NobodyAnswers("nobody")

    monkeypatch.setattr(Host, "create", create)
    printed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    with Home.open(tmp_path / "peer") as home:
        patience = patience_of(home, 600.0)
        entering.append(asyncio.create_task(enter(home, LOOPBACK, [], [], None, patience, print)))
        await asyncio.wait(entering)
        assert not entering, "cancelled while it failed"
    await asyncio.sleep(0)  # the loop holds what it ran last
    gc.collect()
    assert not printed


async def test_a_first_timer_asks_again_where_somebody_is_reached_and_does_not_answer(
    daemon: DaemonP2P, tmp_path: Path
) -> None:
    entries = [str(address) for address in await daemon.get_visible_maddrs()]
    said: list[Event] = []
    silent = asyncio.Event()

    def tell(event: Event) -> None:
        said.append(event)
        silent.set()

    with Home.open(tmp_path / "peer") as home:
        assert not home.returns
        promotion = asyncio.create_task(enter(home, LOOPBACK, entries, [], None, patience_of(home, 600.0), tell))
        async with asyncio.timeout(DEADLINE_S):
            await silent.wait()
            node = await DHTNode.create(p2p=daemon)  # now it answers
            host = await promotion
        away, back = (event for event in said if not isinstance(event, StillDialling))
        assert isinstance(away, CoordinatorAway) and "none of the bootstrap addresses answers" in away.reason
        assert isinstance(back, CoordinatorBack)
        await host.close()
    await node.shutdown()


async def test_a_first_timer_does_not_wait_for_ever(daemon: DaemonP2P, tmp_path: Path) -> None:
    entries = [str(address) for address in await daemon.get_visible_maddrs()]
    with Home.open(tmp_path / "peer") as home, pytest.raises(Unresponsive):
        async with asyncio.timeout(DEADLINE_S):
            await enter(home, LOOPBACK, entries, [], None, patience_of(home, 1.0), lambda _: None)


async def test_a_first_timer_is_told_at_once_that_nobody_is_there(tmp_path: Path) -> None:
    said: list[Event] = []
    nobody = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWR3k1FFDm3WEBwGoazqLctm3NvXFrD37S1jyjJNQ19J4t"
    with Home.open(tmp_path / "peer") as home, pytest.raises(NobodyAnswers):
        await enter(home, DEFAULT_LISTEN, [nobody], [], None, patience_of(home, 600.0), said.append)
    assert said == []


async def test_who_waits_for_an_answer_is_told_so_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a firewall that drops packets, `join` said nothing for half a minute."""
    monkeypatch.setattr(entrance, "QUIET_S", 0.5)
    said: asyncio.Queue[Event] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as mute, Home.open(tmp_path / "peer") as home:
        there = f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}/p2p/12D3KooWR3k1FFDm3WEBwGoazqLctm3NvXFrD37S1jyjJNQ19J4t"
        entering = enter(home, LOOPBACK, [there], [], None, patience_of(home, 600.0), said.put_nowait)
        attempt = asyncio.create_task(entering)
        assert await asyncio.wait_for(said.get(), DEADLINE_S) == StillDialling([there])
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


async def test_a_seat_does_not_wait_for_a_run_that_another_seat_has_seen_end(daemon: DaemonP2P, tmp_path: Path) -> None:
    entries = [str(address) for address in await daemon.get_visible_maddrs()]
    with Home.open(tmp_path / "peer") as home, pytest.raises(HeardFinished, match="the run is finished"):
        async with asyncio.timeout(DEADLINE_S):
            await enter(home, LOOPBACK, entries, [], None, patience_of(home, 600.0, lambda: True), lambda _: None)


async def test_a_peer_finds_a_coordinator_that_has_moved_while_it_was_off(tmp_path: Path) -> None:
    """Its invite and its notes name the old address, where nobody answers. A member that it knew leads it on."""
    key = RunKey(bytes(32))
    said: list[Event] = []
    member = await Host.create(tmp_path / "member", LOOPBACK, key=key)
    coordinator = await Host.create(tmp_path / "coordinator", LOOPBACK, await member.addresses(), key=key)
    new = tuple(await coordinator.addresses())
    record = PeerRecord(
        RUN, Actor(coordinator.peer_id, 0), new, Role.COORDINATOR, None, -1, 0.0, get_dht_time() + LIFETIME_S
    )
    assert await publish(coordinator, record)
    old = f"/ip4/127.0.0.1/tcp/1/p2p/{coordinator.peer_id}"
    with Home.open(tmp_path / "peer") as home:
        (home.checkpoints / "00000004").mkdir(parents=True)
        Notebook(home.neighbours).write({member.peer_id: (7, tuple(await member.addresses()))})
        async with asyncio.timeout(DEADLINE_S):
            host = await enter(home, LOOPBACK, [old], [], key, patience_of(home, 600.0), said.append)
            invite = Invite((old,), coordinator.peer_id, run_hash=RUN, key=key)
            found = await found_again(host, invite)
    assert found.addresses == (old, *new)
    assert all(isinstance(event, CoordinatorAway | CoordinatorBack | StillDialling) for event in said)
    for each in (host, coordinator, member):
        await each.close()


async def test_a_peer_that_is_let_into_the_dht_waits_for_its_coordinator(tmp_path: Path) -> None:
    """With --bootstrap, a peer ended with `cannot dial` when it started before its coordinator."""
    node = await Host.create(tmp_path / "node", LOOPBACK, key=RunKey(bytes(32)))
    with Home.open(tmp_path / "peer") as home:
        away, organiser = Identity.load(tmp_path / "away").peer_id, Authority()
        ticket, print_ = organiser.ticket(RUN), "0000-0000-0000-0000"
        invite = Invite((f"/ip4/127.0.0.1/tcp/1/p2p/{away}",), away, RUN, print_, ticket, organiser.run_key(RUN))
        with pytest.raises(DialError, match="If it has moved, its organiser has a new invite"):
            await be_admitted_somewhere(node, home, invite, None, lambda _: None)
        said: list[Event] = []
        with pytest.raises(CoordinatorGone, match="Ask the organiser for a new invite"):
            await be_admitted_somewhere(node, home, invite, Patience(2.0), said.append)
        assert isinstance(said[0], CoordinatorAway) and "cannot dial" in said[0].reason
    await node.close()
