"""How a peer comes in where nobody answers yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hivemind.dht import DHTNode

from peers.run.home import Home
from peers.stage.entrance import enter
from peers.stage.patience import HeardFinished
from swarm.events import CoordinatorAway, CoordinatorBack, Event
from swarm.net.daemon import DaemonP2P
from swarm.net.host import DEFAULT_LISTEN, NobodyAnswers, Unresponsive

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def daemon() -> AsyncIterator[DaemonP2P]:
    """Reached by libp2p, but without a DHT node."""
    made = await DaemonP2P.create(host_maddrs=LOOPBACK, identity_path=None, nat_port_map=False)
    yield made
    await made.shutdown()


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
        promotion = asyncio.create_task(enter(home, LOOPBACK, entries, [], None, 600.0, tell))
        async with asyncio.timeout(DEADLINE_S):
            await silent.wait()
            node = await DHTNode.create(p2p=daemon)  # now it answers
            host = await promotion
        away, back = said
        assert isinstance(away, CoordinatorAway) and "none of the bootstrap addresses answers" in away.reason
        assert isinstance(back, CoordinatorBack)
        await host.close()
    await node.shutdown()


async def test_a_first_timer_does_not_wait_for_ever(daemon: DaemonP2P, tmp_path: Path) -> None:
    entries = [str(address) for address in await daemon.get_visible_maddrs()]
    with Home.open(tmp_path / "peer") as home, pytest.raises(Unresponsive):
        async with asyncio.timeout(DEADLINE_S):
            await enter(home, LOOPBACK, entries, [], None, 1.0, lambda _: None)


async def test_a_first_timer_is_told_at_once_that_nobody_is_there(tmp_path: Path) -> None:
    said: list[Event] = []
    nobody = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWR3k1FFDm3WEBwGoazqLctm3NvXFrD37S1jyjJNQ19J4t"
    with Home.open(tmp_path / "peer") as home, pytest.raises(NobodyAnswers):
        await enter(home, DEFAULT_LISTEN, [nobody], [], None, 600.0, said.append)
    assert said == []


async def test_a_seat_does_not_wait_for_a_run_that_another_seat_has_seen_end(daemon: DaemonP2P, tmp_path: Path) -> None:
    entries = [str(address) for address in await daemon.get_visible_maddrs()]
    with Home.open(tmp_path / "peer") as home, pytest.raises(HeardFinished, match="the run is finished"):
        async with asyncio.timeout(DEADLINE_S):
            await enter(home, LOOPBACK, entries, [], None, 600.0, lambda _: None, lambda: True)
