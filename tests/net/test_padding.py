"""Padding on the wire: it arrives on the stream of the data that it precedes, counts apart, and nobody else sees it."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.net import message_allowance
from swarm.net.message_allowance import OF_DEVICE, SAVED_S
from swarm.net.uplink import Uplink
from swarm.net.wire import Encoder
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term

Pair = Any
"""Of conftest.py, reached through fixtures: tests are not importable."""
PASS = PassId(Term(1), StepNumber(2))


def frame(microbatch: int, direction: Direction = Direction.FORWARD) -> m.Frame:
    return m.Frame(FrameKey(PASS, 1, direction, Microbatch(microbatch)), bytes(10))


@pytest.mark.parametrize("kind", range(len(m.PADDED_KINDS)))
async def test_padding_counts_apart_and_is_dropped(pair: Pair, kind: int) -> None:
    a, b = await pair.start()
    a.send(b.me, frame(0))
    assert await pair.two.next_of(pair.two.messages) == (a.me, frame(0))
    a.pad(b.me, kind, 100_000)
    await pair.two.until(lambda: b.traffic.total().received["padding"] > 100_000)
    a.send(b.me, frame(1))
    assert await pair.two.next_of(pair.two.messages) == (a.me, frame(1)), "the padding is not delivered"
    sent = a.traffic.total().sent
    assert sent == b.traffic.total().received
    assert sent["padding"] < 100_200 and sent["activation"] < 200 and sent["gradient"] == sent["reduce"] == 0
    assert pair.two.refused_frames.empty()


async def test_padding_never_waits_before_or_behind_data(pair: Pair) -> None:
    """What is queued in one go is sent later, so the queue decides."""
    a, b = await pair.start()
    a.send(b.me, frame(0))
    await pair.two.next_of(pair.two.messages)
    a.pad(b.me, 0, 300_000)
    a.send(b.me, frame(1))
    a.pad(b.me, 0, 300_000)
    assert await pair.two.next_of(pair.two.messages) == (a.me, frame(1))
    a.send(b.me, frame(2, Direction.BACKWARD))
    assert await pair.two.next_of(pair.two.messages) == (a.me, frame(2, Direction.BACKWARD))
    assert a.traffic.total().sent["padding"] == 0


async def test_padding_never_waits_behind_a_frame_that_is_being_written(pair: Pair) -> None:
    a, b = await pair.start(first={"uplink": Uplink(400_000)})
    a.send(b.me, frame(0))
    await pair.two.next_of(pair.two.messages)
    a.send(b.me, m.Frame(frame(1).key, bytes(200_000)))
    await pair.one.until(lambda: a._links[b.me].waiting(frame(1)) == 0)  # it has left the queue
    a.pad(b.me, 0, 30_000)
    a.send(b.me, frame(2))
    for number in (1, 2):
        assert (await pair.two.next_of(pair.two.messages))[1].key == frame(number).key
    assert a.traffic.total().sent["padding"] == 0


async def test_padding_for_a_peer_without_connection_is_not_sent(pair: Pair) -> None:
    a, b = await pair.start()
    a.pad(b.me, 0, 1000)
    a.send(b.me, frame(0))
    assert await pair.two.next_of(pair.two.messages) == (a.me, frame(0))
    assert a.traffic.total().sent["padding"] == 0


async def test_too_much_padding_slows_its_sender(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_allowance, "SAVED_S", SAVED_S / 100)
    a, b = await pair.start()
    a.send(b.me, frame(0))
    await pair.two.next_of(pair.two.messages)
    for _ in range(int(OF_DEVICE)):
        a.send(b.me, m.Padding(0, bytes(1000)))
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me


def test_padding_has_a_largest_size() -> None:
    encoder = Encoder(Actor("me", 1), Actor("you", 1))
    encoder.encode(m.Padding(2, bytes(m.MAX_FILLER)))
    with pytest.raises(WireError, match="at most 32768"):
        encoder.encode(m.Padding(2, bytes(m.MAX_FILLER + 1)))
    with pytest.raises(WireError):
        encoder.encode(m.Padding(3, b""))
