"""Who sends too many messages is read more slowly; nothing is lost, and others do not wait."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net import message_allowance, relay_signature
from swarm.net.message_allowance import MAX_COUNTED, OF_DEVICE, OF_PASS, SAVED_S, MessageAllowance
from swarm.net.proto import messages_pb2 as pb
from swarm.net.wire import Decoder
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term

Pair = Any
"""Of conftest.py, reached through fixtures: tests are not importable."""
SMALLEST = FrameKey(PassId(Term(0), StepNumber(0)), 0, Direction.FORWARD, Microbatch(0))
"""A key that takes six bytes."""


@given(st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(0.0, 2.0)), max_size=200))
def test_in_any_time_no_more_is_read_than_the_rate_and_what_was_saved_up(uses: list[tuple[float, float]]) -> None:
    of = MessageAllowance()
    now = total = 0.0
    for points, idle_s in uses:
        now += idle_s
        assert total <= OF_DEVICE * (SAVED_S + now) + 1e-6
        total += points
        now += of.use("device", b"pass", points, now)


def test_one_pass_does_not_wait_for_another_and_coordinators_never_do() -> None:
    of = MessageAllowance()
    assert of.use("one", b"p", 2 * OF_DEVICE * SAVED_S, 0.0) == pytest.approx(SAVED_S)
    assert of.use("another", b"p", 1.0, 0.0) == 0.0, "of the same pass, which has more than one device"
    assert of.use("", b"", 100 * OF_PASS * SAVED_S, 0.0) == 0.0
    assert of.use("one", b"p", 0.0, SAVED_S) == 0.0


def test_the_devices_of_a_pass_share_its_allowance() -> None:
    of = MessageAllowance()
    for device in range(10):
        assert of.use(str(device), b"p", OF_DEVICE * SAVED_S, 0.0) == 0.0
    assert of.use("one more", b"p", OF_PASS, 0.0) == pytest.approx(1.0)
    assert of.use("of another person", b"q", OF_DEVICE * SAVED_S, 0.0) == 0.0


def test_no_more_are_counted_however_many_come() -> None:
    of = MessageAllowance()
    for number in range(MAX_COUNTED + 10):
        of.use(str(number), number.to_bytes(4), OF_DEVICE * SAVED_S, 0.0)
    assert len(of._devices) == len(of._passes) == MAX_COUNTED
    assert of.use(str(MAX_COUNTED + 9), b"q", OF_DEVICE, 0.0) == pytest.approx(1.0), "those heard last are known"


async def test_messages_beyond_the_allowance_arrive_late_and_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_allowance, "OF_DEVICE", 100.0)
    monkeypatch.setattr(message_allowance, "SAVED_S", 0.2)
    a, b = await pair.start()
    sent = [m.Released(PassId(Term(1), StepNumber(2)), number, ()) for number in range(60)]
    for message in sent:
        a.send(b.me, message)
    assert [await pair.two.next_of(pair.two.messages) for _ in sent] == [(a.me, message) for message in sent]
    slowed, wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me and wait_s > 0
    assert pair.two.slowed.qsize() >= 5


@pytest.mark.parametrize(
    "message",
    [
        m.Want((SMALLEST,) * 3200),
        m.Pending((SMALLEST,) * 6400),
        m.Relay(Actor("third", 1), Actor("fourth", 1), m.Want((SMALLEST,) * 3200)),
    ],
    ids=["Want", "Pending", "relayed Want"],
)
async def test_many_small_values_cost_what_they_take(pair: Pair, message: Any) -> None:
    """These messages have about 20 KiB, but decoding one takes as long as decoding hundreds of others."""
    a, b = await pair.start()
    if isinstance(message, m.Relay):
        message = replace(message, origin=a.me)
    for _ in range(30):
        a.send(b.me, message)
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me
    assert pair.two.messages.qsize() >= 5, "what was saved up is read at once"


async def test_frames_that_their_origin_sends_through_another_actor_are_limited(pair: Pair) -> None:
    """They may be empty, for any receiver, and as many as the line carries."""
    a, b = await pair.start()
    for number in range(int(OF_DEVICE * SAVED_S) + 500):
        key = replace(SMALLEST, microbatch=Microbatch(number))
        a.send(b.me, m.Relay(a.me, Actor("third", 1), m.Frame(key, b"")))
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me


@pytest.mark.parametrize("of_use", [True, False])
async def test_frames_of_no_use_are_limited_by_number_and_size_and_others_are_not(pair: Pair, of_use: bool) -> None:
    """Anybody could repeat a frame, or send frames of other passes, for ever."""
    a, b = await pair.start(None, {"expects": lambda sender, frame: of_use})
    size = int(OF_DEVICE * SAVED_S * message_allowance.USELESS_BYTES / 40)
    for number in range(50):
        a.send(b.me, m.Frame(replace(SMALLEST, microbatch=Microbatch(number)), bytes(size)))
    if of_use:
        for _ in range(50):
            await pair.two.next_of(pair.two.messages)
        assert pair.two.slowed.empty()
    else:
        slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
        assert slowed == a.me
        assert pair.two.messages.qsize() >= 35, "what was saved up is read at once"


async def test_refused_frames_cost_what_their_size_is(pair: Pair) -> None:
    def refuse(frame: m.WithPayload) -> None:
        raise ValueError("no")

    a, b = await pair.start(None, {"check_frame": refuse})
    size = int(OF_DEVICE * SAVED_S * message_allowance.USELESS_BYTES / 40)
    for number in range(50):
        a.send(b.me, m.Frame(replace(SMALLEST, microbatch=Microbatch(number)), bytes(size)))
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me and pair.two.refused_frames.qsize() < 50


@pytest.mark.parametrize("refused", [True, False])
async def test_few_bytes_that_take_long_to_check_cost_what_they_take(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A payload of a few kilobytes may stand for millions of values."""

    def check(frame: m.WithPayload) -> None:
        ends = time.thread_time() + 0.05
        while time.thread_time() < ends:
            pass
        if refused:
            raise ValueError("no")

    monkeypatch.setattr(message_allowance, "SAVED_S", 5.0)
    a, b = await pair.start(None, {"check_frame": check, "expects": lambda sender, frame: False})
    for number in range(30):
        a.send(b.me, m.Frame(replace(SMALLEST, microbatch=Microbatch(number)), b""))
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me
    assert pair.two.refused_frames.qsize() + pair.two.messages.qsize() < 10


async def test_relayed_frames_of_no_use_are_limited_whoever_made_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member could sign them under another incarnation, or repeat what it once passed on."""
    monkeypatch.setattr(message_allowance, "SAVED_S", 1.0)
    a, b = await pair.start(None, {"expects": lambda sender, frame: False})
    before = replace(a.me, incarnation=a.me.incarnation + 1)
    for number in range(int(OF_DEVICE) + 100):
        relay = m.Relay(before, b.me, m.Frame(replace(SMALLEST, microbatch=Microbatch(number)), b""))
        a.send(b.me, relay_signature.signed(relay, pair.hosts[0].identity, a._relaying._run_hash))
    slowed, _wait_s = await pair.two.next_of(pair.two.slowed)
    assert slowed == a.me and pair.two.refused_frames.empty()


def test_introductions_are_counted() -> None:
    """A header of any message may introduce thousands of actors, and each must be decoded."""
    actors = [pb.Actor(peer=f"p{number}", incarnation=1) for number in range(6000)]
    decoder = Decoder(Actor("a", 1), Actor("b", 1))
    decoder.decode(pb.Header(introduce=actors, ping={"number": 1}).SerializeToString(), b"")
    assert decoder.parts > 6000
