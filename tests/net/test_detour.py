"""Bulk data of somebody who cannot be dialled, through a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from swarm.net import detour
from swarm.net.bulk import Answers, BulkError, Transfer
from swarm.net.daemon import DialError, NotReady
from swarm.net.detour import Detour, PassedOn, StraightWays
from swarm.net.handshake import Role
from swarm.net.network import Network
from swarm.net.stream import Stream
from swarm.protocol.ids import Actor

STATE = bytes(range(256)) * 20_000  # 5 MB: several chunks
DEADLINE_S = 60.0
Three = tuple[Network, Network, Network]
"""Who asks, who cannot be dialled, and to whom both have a connection."""


async def serve_state(requester: Actor, request: bytes) -> Transfer:
    if request == b"who am I?":
        return Transfer.of(str(requester).encode())
    if request != b"state":
        raise BulkError(f"what is {request.decode()}?")
    return Transfer.of(STATE)


async def reached(network: Network, other: Network, address: list[str]) -> None:
    network.learn(other.me, address)
    network.dial(other.me)
    async with asyncio.timeout(DEADLINE_S):
        while not other._dialler.connected(network.me.peer):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(params=[Role.COORDINATOR])
async def three(
    request: Any, make_host: Any, make_recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Three]:
    hosts = [await make_host() for _ in range(3)]
    roles = Role.PEER, Role.PEER, request.param
    networks = [
        make_recorder().network(host, role=role, coordinators=(hosts[2].peer_id,))
        for host, role in zip(hosts, roles, strict=True)
    ]
    for network in networks:
        await network.start()
    asker, hidden, guide = networks
    for network in (asker, hidden):
        await reached(network, guide, await hosts[2].addresses())
    open_stream = hosts[0].open_stream

    async def as_over_a_router(peer_id: str, protocol: str) -> Stream:  # on one machine libp2p would find a way
        if peer_id == hidden.me.peer:
            raise DialError(f"no route to {peer_id}")
        return await open_stream(peer_id, protocol)

    monkeypatch.setattr(hosts[0], "open_stream", as_over_a_router)
    hidden.bulk.serve(serve_state)
    hidden.bulk.favour([guide.me.peer])
    hidden.bulk.go_round_by([guide.me])
    yield asker, hidden, guide
    for network in networks:
        await network.close()


async def test_state_comes_through_a_coordinator(three: Three) -> None:
    asker, hidden, guide = three
    with pytest.raises(DialError):
        await asker.bulk.fetch(hidden.me, b"state")
    asker.bulk.go_round_by([guide.me])
    assert await (await asker.bulk.fetch(hidden.me, b"state")).read() == STATE
    assert await (await asker.bulk.fetch(hidden.me.peer, b"state")).read() == STATE, "whatever incarnation is there"
    async with asyncio.timeout(DEADLINE_S):
        while guide.traffic.total().sent["bulk"] < 2 * len(STATE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    asked_as = await (await asker.bulk.fetch(hidden.me, b"who am I?")).read()
    assert asked_as == str(asker.me).encode(), "it may ask for no more than it may itself"
    with pytest.raises(BulkError, match="what is gossip"):
        await asker.bulk.fetch(hidden.me, b"gossip")
    with pytest.raises(BulkError, match="incarnation"):
        await asker.bulk.fetch(Actor(hidden.me.peer, hidden.me.incarnation + 1), b"state")
    with pytest.raises(BulkError, match=f"{len(STATE)} bytes; at most"):
        await asker.bulk.fetch(hidden.me, b"state", max_bytes=1000)


async def test_many_at_once_are_passed_on(three: Three) -> None:
    """More than a stranger may ask for: they are of several newcomers, as far as the donor can tell."""
    asker, hidden, guide = three
    asker.bulk.go_round_by([guide.me])

    async def one() -> bytes:
        return bytes(await (await asker.bulk.fetch(hidden.me, b"state")).read())

    assert set(await asyncio.gather(*(one() for _ in range(6)))) == {STATE}


async def test_what_is_not_passed_on(three: Three) -> None:
    asker, hidden, guide = three
    again = Detour(hidden.me.peer, None, Detour(hidden.me.peer, None, b"state").encode())
    masked = Detour(hidden.me.peer, None, PassedOn(guide.me, b"state").encode())
    stranger = Detour("12D3KooWNoSuchPeer", None, b"state")
    reasons = "cannot be forwarded again", "cannot be forwarded again", "is not connected to this coordinator either"
    for request, reason in zip((again, masked, stranger), reasons, strict=True):
        with pytest.raises(BulkError, match=reason):
            await asker.bulk.fetch(guide.me, request.encode())
    asker.bulk.serve(serve_state)
    with pytest.raises(BulkError, match="only coordinators may forward requests of others"):
        await guide.bulk.fetch(asker.me, PassedOn(hidden.me, b"state").encode())


@pytest.mark.parametrize("three", [Role.PEER], indirect=True)
async def test_peers_pass_nothing_on(three: Three) -> None:
    asker, hidden, guide = three
    asker.bulk.go_round_by([guide.me])
    with pytest.raises(BulkError, match="only coordinators forward requests"):
        await asker.bulk.fetch(hidden.me, b"state")


async def test_whom_it_is_of_no_use_to_dial_is_not_dialled_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detour, "HEAD_START_S", 0.05)
    now, dialled = 0.0, 0
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ways = StraightWays(lambda: now)

    async def fails() -> Any:
        nonlocal dialled
        dialled += 1
        raise DialError("no route")

    class Late:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    for count in (1, 1):
        with pytest.raises(DialError):
            await ways.open("p", fails)
        assert dialled == count
    now = detour.AGAIN_S
    with pytest.raises(DialError, match="has not answered"):
        await ways.open("p", lambda: answer)
    with pytest.raises(DialError, match="could not be reached in the last 60 s"):
        await ways.open("p", fails)
    answer.set_result(late := Late())
    await asyncio.sleep(0)
    assert late.aborted, "nobody wants that stream any more"
    with pytest.raises(DialError, match="no route"):
        await ways.open("p", fails)  # it answers, so it is dialled again
    assert dialled == 2


async def test_who_is_just_starting_is_not_out_of_reach() -> None:
    ways = StraightWays()

    async def starting() -> Any:
        raise NotReady("it does not know our protocols yet")

    for _ in range(2):
        with pytest.raises(NotReady):
            await ways.open("p", starting)


def test_a_request_keeps_its_form() -> None:
    for asked in (Detour("12D3KooWAbc", 7, b"\n\xff\n"), Detour("12D3KooWAbc", None, b"")):
        assert Detour.decode(asked.encode()) == asked
    passed_on = PassedOn(Actor("12D3KooWAbc", 0), b"\n")
    assert PassedOn.decode(passed_on.encode()) == passed_on and Detour.decode(passed_on.encode()) is None
    assert PassedOn.decode(b"for p -\nx") is None and PassedOn.decode(Detour("p", 1, b"x").encode()) is None
    for raw in (b"", b"detour", b"detour p 01\nx", b"detour p -1\nx", b"detour \n", b"detour 0OIl 1\nx", b"manifest"):
        assert Detour.decode(raw) is None


def test_those_who_ask_for_others_have_no_limit_of_their_own() -> None:
    class Stream:
        sent = 0

    answers = Answers(per_peer=1)
    with answers.one_for("p", Stream()):  # type: ignore[arg-type]
        with pytest.raises(BulkError, match="1 transfers to you"), answers.one_for("p", Stream()):  # type: ignore[arg-type]
            pass
        answers.favoured = frozenset({"p"})
        with answers.one_for("p", Stream()):  # type: ignore[arg-type]
            pass
