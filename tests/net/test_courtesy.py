"""State lets training pass on a line whose rate nobody has told, and is never held for long."""

from __future__ import annotations

import asyncio

import pytest

from swarm.net.channel import lanes_of
from swarm.net.courtesy import LEAST, SHARE, STUCK_S, WINDOW_S, WINDOWS, CourteousLane, Courtesy, Speed
from swarm.net.handshake import Channel
from swarm.net.uplink import Uplink

DEADLINE_S = 60.0
PIECE = 10_000


class Clock:
    """Stands still but for those who wait: for them it is as late as they wish."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio, "timeout", self._skip)

    def __call__(self) -> float:
        return self.now

    def _skip(self, seconds: float | None) -> asyncio.Timeout:
        self.now += seconds or 0.0
        return asyncio.Timeout(asyncio.get_running_loop().time())  # over at once


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def send(lane: CourteousLane, count: int) -> None:
    for _ in range(count):
        await lane.take(lane.frame(), PIECE)
        lane.wrote(PIECE)


async def test_while_training_is_held_up_state_gets_a_quarter_of_the_fastest_rate(clock: Clock) -> None:
    courtesy = Courtesy(clock)
    training, state = courtesy.lane(gives_way=False), courtesy.lane(gives_way=True)
    for _ in range(4000):  # ten megabytes a second, as the line is
        await send(training, 1)
        clock.now += 0.001
    clock.now += WINDOW_S
    await training.take(0, PIECE)
    began = clock.now
    await send(state, 500)
    assert (clock.now - began) * 1e7 * SHARE == pytest.approx(500 * PIECE, rel=0.02)


async def test_a_receiver_that_does_not_read_holds_others_up_for_a_while_only(clock: Clock) -> None:
    courtesy = Courtesy(clock)
    await courtesy.lane(gives_way=False).take(0, PIECE)  # to a receiver that takes nothing
    began = clock.now
    await send(courtesy.lane(gives_way=True), 10_000)
    assert clock.now - began == pytest.approx(STUCK_S, abs=1.0)


async def held_up(clock: Clock, reads_every_s: float, streams: int = 1) -> float:
    """The rate of other traffic on a line of ten megabytes a second, ÷ that rate, while each of the streams has a piece
    blocked, and its receiver takes one in this number of seconds.
    """
    courtesy = Courtesy(clock)
    training, state = courtesy.lane(gives_way=False), courtesy.lane(gives_way=True)
    for _ in range(4000):
        await send(training, 1)
        clock.now += 0.001
    clock.now += WINDOW_S
    gates = [asyncio.Event() for _ in range(streams)]

    async def read_slowly(gate: asyncio.Event) -> None:
        while True:
            await training.take(0, PIECE)
            await gate.wait()
            gate.clear()
            training.wrote(PIECE)

    slow = [asyncio.create_task(read_slowly(gate)) for gate in gates]
    await asyncio.sleep(0)
    began, read_at, sent = clock.now, clock.now, 0
    while clock.now - began < 20 * STUCK_S:
        await state.take(0, PIECE)
        state.wrote(PIECE)
        sent += PIECE
        clock.now += PIECE / 1e7
        if clock.now - read_at >= reads_every_s:
            read_at = clock.now
            for gate in gates:
                gate.set()
            for _ in range(3):
                await asyncio.sleep(0)
    for each in slow:
        each.cancel()
    return sent / (clock.now - began) / 1e7


async def test_a_receiver_that_takes_a_piece_now_and_then_holds_nobody_up_for_long(clock: Clock) -> None:
    assert await held_up(clock, 0.9 * STUCK_S) > 0.9


async def test_streams_that_share_a_full_line_hold_others_up_all_the_time(clock: Clock) -> None:
    """The line has become four times as slow."""
    streams = 16
    assert await held_up(clock, 4 * streams * PIECE / 1e7, streams) < 1.2 * SHARE


async def test_whoever_has_sent_nothing_yet_gets_a_piece_a_second_through(clock: Clock) -> None:
    courtesy = Courtesy(clock)
    await courtesy.lane(gives_way=False).take(0, PIECE)  # to a receiver that takes nothing
    began = clock.now
    await send(courtesy.lane(gives_way=True), 100)
    assert (clock.now - began) * LEAST == pytest.approx(100 * PIECE, rel=0.02)


async def test_what_is_not_held_up_makes_nobody_wait_and_leaves_no_debt(clock: Clock) -> None:
    courtesy = Courtesy(clock)
    training, state = courtesy.lane(gives_way=False), courtesy.lane(gives_way=True)
    began = clock.now
    await send(training, 10)
    await send(state, 1000)
    await training.take(0, PIECE)
    await state.take(0, PIECE)
    assert clock.now == began


async def test_state_goes_on_at_once_when_training_has_left() -> None:
    courtesy = Courtesy(lambda: 0.0)
    training, state = courtesy.lane(gives_way=False), courtesy.lane(gives_way=True)
    taken, reads = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        await training.take(0, PIECE)
        taken.set()
        await reads.wait()
        training.wrote(PIECE)

    await training.take(0, PIECE)
    other = asyncio.create_task(write())
    await taken.wait()
    await state.take(0, 1 << 40)  # so that the next one would wait for days
    waiting = asyncio.create_task(state.take(0, PIECE))
    training.wrote(PIECE)
    await asyncio.sleep(0)
    assert not waiting.done(), "another piece is held up"
    reads.set()
    async with asyncio.timeout(DEADLINE_S):
        await waiting
        await other


def test_the_fastest_window_counts_for_a_minute() -> None:
    speed = Speed()
    speed.add(8000, 1.0)
    assert speed.fastest(1.0) == 8000 / WINDOW_S
    for window in range(1, WINDOWS):
        speed.add(10, window * WINDOW_S + 1.0)
    until = WINDOWS * WINDOW_S + 1.0
    assert speed.fastest(until - 0.1) == 8000 / WINDOW_S
    assert speed.fastest(until) == 10 / WINDOW_S


def test_what_was_sent_before_a_pause_of_a_minute_does_not_count() -> None:
    """The line may be slower now. A swarm with long steps sends only a burst in each step."""
    speed = Speed()
    speed.add(500_000_000, 1.0)
    speed.add(8000, 62.0)
    assert speed.fastest(62.0) == 8000 / WINDOW_S


async def test_after_a_long_pause_state_gets_as_little_as_at_the_start(clock: Clock) -> None:
    courtesy = Courtesy(clock)
    training, state = courtesy.lane(gives_way=False), courtesy.lane(gives_way=True)
    await send(training, 4000)
    clock.now += WINDOWS * WINDOW_S
    await training.take(0, PIECE)
    began = clock.now
    await state.take(0, PIECE)
    state.wrote(PIECE)
    await state.take(0, PIECE)
    assert (clock.now - began) * LEAST == pytest.approx(PIECE)


async def test_without_a_limit_all_but_control_have_a_lane_and_with_one_control_too() -> None:
    assert set(lanes_of(None)) == set(Channel) - {Channel.CONTROL}
    assert set(lanes_of(Uplink(1e6))) == set(Channel)
