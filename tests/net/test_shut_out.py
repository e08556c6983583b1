"""Who is shut out loses what is open at once, is refused by name, and is not spoken to any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from endless_transfer import NBYTES, EndlessTransfer

from swarm.net.bulk import BulkError, Transfer
from swarm.net.detour import PassedOn
from swarm.net.handshake import Refused
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor

DEADLINE_S = 60.0
Pair = Any


async def test_links_and_transfers_end_and_hellos_are_refused(pair: Pair) -> None:
    a, b = await pair.start()
    a.send(b.me, m.Twin(1))
    b.send(a.me, m.Twin(2))
    await pair.two.next_of(pair.two.messages)
    await pair.one.next_of(pair.one.messages)
    endless = EndlessTransfer(1 << 16)
    b.bulk.serve(endless.handler)
    transfer = await a.bulk.fetch(b.me, b"x", max_bytes=NBYTES)
    await anext(transfer.chunks)
    b.shut_out({a.me.peer: "expelled by Ann"})
    assert b.why_lost(a.me) is None and a.me not in b._links, "its link is gone at once"
    with pytest.raises(BulkError, match="the transfer broke"):
        async for _ in transfer.chunks:
            pass
    async with asyncio.timeout(DEADLINE_S):
        await endless.ended.wait()
    await pair.one.until(lambda: a.why_hopeless(b.me) is not None)
    assert "shut out: expelled by Ann" in str(a.why_hopeless(b.me))
    with pytest.raises(Refused, match="shut out: expelled by Ann"):
        await a.bulk.fetch(b.me, b"x")
    b.send(a.me, m.Twin(3))
    actor, count, reason = await pair.two.next_of(pair.two.dropped)
    assert (actor, count, reason) == (a.me, 1, "it was banned from the run") and a.me not in b._links


async def test_nothing_is_passed_on_for_who_is_shut_out(pair: Pair) -> None:
    a, b = await pair.start()
    b.bulk.go_round_by((a.me,))
    stranger = Actor("12D3KooWGLRVVPvcDMrJhekde9TpTBD1qiwdW8xK32UZrBTnp9fm", 1)

    async def handler(requester: Actor, _request: bytes) -> Transfer:
        return Transfer.of(requester.peer.encode())

    b.bulk.serve(handler)
    request = PassedOn(stranger, b"state").encode()
    assert bytes(await (await a.bulk.fetch(b.me, request)).read()) == stranger.peer.encode()
    b.shut_out({stranger.peer: "expelled"})
    with pytest.raises(BulkError, match="was banned from the run"):
        await a.bulk.fetch(b.me, request)
    b.shut_out({})
    assert bytes(await (await a.bulk.fetch(b.me, request)).read()) == stranger.peer.encode()


async def test_a_coordinator_is_never_shut_out(pair: Pair) -> None:
    """A record of an earlier release may expel one of a group, and nothing in it can take that back."""
    a, b = await pair.start()
    (coordinator,) = b.admission.door.coordinators
    b.shut_out({coordinator: "expelled by Ann", a.me.peer: "expelled by Ann"})
    assert set(b.admission.door.banned) == {a.me.peer}
