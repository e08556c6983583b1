"""The probe of a link: bounded in bytes, seconds and number, and told by who receives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from peers.runtime import link_probe
from peers.runtime.link_probe import DOWN, LONGEST_WAIT_S, PAUSE_S, SIZE, UP, Prober, noise, probe_link, received_rate
from swarm.net.bulk import BulkError, Transfer
from swarm.protocol.ids import Actor

PEER, COORDINATOR = Actor("peer", 1), Actor("coordinator", 0)
PIECE = 1 << 16


def paced(pieces: int, pause_s: float, closed: list[int]) -> Transfer:
    async def chunks() -> AsyncGenerator[bytes, None]:
        sent = 0
        try:
            for _ in range(pieces):
                await asyncio.sleep(pause_s)
                sent += 1
                yield bytes(PIECE)
        finally:
            closed.append(sent)

    return Transfer(pieces * PIECE, chunks())


async def test_a_slow_link_is_measured_for_a_second_and_broken_off() -> None:
    closed: list[int] = []
    rate = await received_rate(paced(1000, 0.01, closed), limit_s=0.2)
    assert 0.2 * PIECE / 0.01 < rate < 1.05 * PIECE / 0.01
    assert closed[0] < 40, "the rest is not asked for"


async def test_noise_is_no_more_than_it_says_and_cannot_be_compressed() -> None:
    import zlib

    whole = bytes(await noise().read())
    assert len(whole) == SIZE
    assert len(zlib.compress(whole[:PIECE])) > PIECE


class Coordinator:
    """Both ends of a link in one place."""

    def __init__(self) -> None:
        self.prober = Prober(self, lambda: self.now)
        self.now = 0.0
        self.asked: list[tuple[str, bytes]] = []

    async def fetch(self, source: Actor, request: bytes, max_bytes: int) -> Transfer:
        self.asked.append((source.peer, request))
        if source == PEER:
            return paced(20, 0.005, [])
        return await self.prober.answer(PEER, request)


async def test_both_directions_are_measured_where_no_limit_says_one() -> None:
    link = Coordinator()
    up, down = await probe_link(link, COORDINATOR, up=True)
    assert up is not None and 0.2 * PIECE / 0.005 < up < 1.05 * PIECE / 0.005
    assert down is not None and down > up
    assert link.asked == [("coordinator", DOWN), ("coordinator", UP), ("peer", DOWN)]
    link = Coordinator()
    up, down = await probe_link(link, COORDINATOR, up=False)
    assert up is None and down is not None and link.asked == [("coordinator", DOWN)]


async def test_a_peer_is_probed_once_a_minute_and_joins_all_the_same() -> None:
    link = Coordinator()
    await probe_link(link, COORDINATOR, up=False)
    assert await probe_link(link, COORDINATOR, up=False) == (None, None)
    with pytest.raises(BulkError, match="measured less than 60 s ago"):
        await link.prober.answer(PEER, DOWN)
    link.now += PAUSE_S
    assert (await probe_link(link, COORDINATOR, up=False))[1] is not None


async def test_probes_wait_for_each_other_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    link, slept = Coordinator(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(link_probe.asyncio, "sleep", sleep)
    for number in range(3):
        await link.prober.answer(Actor(f"p{number}", 1), DOWN)
    assert slept == [0.0, 2.0, 4.0] and slept[-1] <= LONGEST_WAIT_S
    with pytest.raises(BulkError, match="many peers measure their links now"):
        await link.prober.answer(Actor("p4", 1), DOWN)
