"""The limit on what a process sends: never more than it says, nobody starves, urgent things pass by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.bulk import Transfer
from swarm.net.channel import WEIGHTS
from swarm.net.host import Host
from swarm.net.uplink import LEAST_RATE, Line, Uplink, bucket_of
from swarm.protocol import messages as m
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PartKey,
    PassId,
    StageIndex,
    StepNumber,
    Term,
)

Pair = Any
DEADLINE_S = 60.0
PASS = PassId(Term(1), StepNumber(2))

# ---------------------------------------------------------------- the bucket


@given(
    rate=st.floats(LEAST_RATE, 1e9),
    wishes=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_no_window_holds_more_than_its_share_and_a_burst(rate: float, wishes: list[tuple[float, float]]) -> None:
    """Pieces of any size at any time, some taken as soon as they may be, some later."""
    bucket = bucket_of(rate, now=100.0)
    now, taken = 100.0, list[tuple[float, int]]()
    for pause, share in wishes:
        nbytes = int(share * bucket.burst)
        now += max(pause - 1.0, 0.0)
        while not bucket.take(nbytes, now):
            now += bucket.wait(nbytes, now)
        taken.append((now, nbytes))
    for start, (begun, _) in enumerate(taken):
        total = 0
        for at, nbytes in taken[start:]:
            total += nbytes
            assert total <= (rate * (at - begun) + bucket.burst) * (1 + 1e-9) + 1.01


@given(rate=st.floats(LEAST_RATE, 1e9), shares=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=40))
def test_who_always_has_something_to_send_gets_the_whole_rate(rate: float, shares: list[float]) -> None:
    bucket = bucket_of(rate, now=0.0)
    now = total = 0.0
    for share in shares:
        nbytes = int(share * bucket.burst)
        while not bucket.take(nbytes, now):
            now += bucket.wait(nbytes, now)
        total += nbytes
    assert now <= total / rate * (1 + 1e-9)


def test_what_is_charged_is_paid_for_by_what_comes_later() -> None:
    bucket = bucket_of(10_000.0, now=0.0)
    burst = int(bucket.burst)
    bucket.charge(3 * burst, now=0.0)
    assert not bucket.take(1, now=0.0)
    assert bucket.wait(burst, now=0.0) == pytest.approx(3 * bucket.burst / 10_000.0, abs=1e-3)


# ---------------------------------------------------------------- the line


@given(
    weights=st.lists(st.sampled_from([1.0, 3.0, 12.0]), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 1000), min_size=60, max_size=200),
)
def test_lanes_that_wait_share_by_weight(weights: list[float], sizes: list[int]) -> None:
    """The bound of start-time fair queueing, over every window in which both lanes had something waiting."""
    line = Line[int]()
    frames = iter(range(10**6))
    for lane in range(len(weights)):
        line.join(lane, next(frames), sizes[lane], lane)
    served = [[0.0] * len(weights)]
    for size in sizes:
        found = line.first()
        assert found is not None
        lane, request = found
        assert line.serve(lane, weights[lane]) == lane
        counts = list(served[-1])
        counts[lane] += request.nbytes
        served.append(counts)
        line.join(lane, next(frames), size, lane)
    largest = max(sizes)
    for one, other in ((0, k) for k in range(1, len(weights))):
        gaps = [counts[one] / weights[one] - counts[other] / weights[other] for counts in served]
        assert max(gaps) - min(gaps) <= 2 * (largest / weights[one] + largest / weights[other]) + 1e-6


def test_frames_of_a_lane_leave_one_after_another() -> None:
    line = Line[str]()
    line.join("lane", 7, 10, "second")
    line.join("lane", 3, 10, "first")
    line.join("lane", 7, 10, "third")
    assert [line.serve("lane", 1.0) for _ in range(3)] == ["first", "second", "third"]
    assert line.first() is None


def test_a_lane_that_was_silent_saves_nothing_up() -> None:
    line = Line[str]()
    for frame in range(100):
        line.join("busy", frame, 10, "busy")
        line.serve("busy", 1.0)
    for frame in range(4):
        line.join("busy", frame, 10, "busy")
        line.join("fresh", frame, 10, "fresh")
    order = [line.serve(lane, 1.0) for _ in range(8) if (lane := line.first()[0])]  # type: ignore[index]
    assert order[:4] in (["fresh", "busy"] * 2, ["busy", "fresh"] * 2)


# ---------------------------------------------------------------- in a loop, with a clock of our own


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_wait_that_is_cancelled_is_nobodys_turn() -> None:
    clock = Clock()
    uplink = Uplink(1e6, clock)
    lane = uplink.lane(1.0)
    burst = int(1e6 * 0.1)
    for _ in range(burst // lane.piece):
        await lane.take(lane.frame(), lane.piece)
    waiting = [asyncio.create_task(lane.take(lane.frame(), lane.piece)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    clock.now += lane.piece / 1e6  # enough for one
    async with asyncio.timeout(DEADLINE_S):
        await waiting[1]
    assert waiting[0].cancelled() and not waiting[2].done()
    clock.now += 1.0
    async with asyncio.timeout(DEADLINE_S):
        await waiting[2]


async def test_gradients_go_before_activations_and_urgent_things_before_all() -> None:
    clock = Clock()
    uplink = Uplink(1e6, clock)
    lanes = {channel.value: uplink.lane(weight) for channel, weight in WEIGHTS.items()}
    order: list[str] = []

    async def send(name: str, pieces: int) -> None:
        lane = lanes[name]
        frame = lane.frame()
        for _ in range(pieces):
            await lane.take(frame, lane.piece)
            order.append(name)

    await send("activation", 4)  # the burst is spent
    order.clear()
    sending = [asyncio.create_task(send(name, 24)) for name in ("bulk", "activation", "gradient")]
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await send("control", 2)
    assert order == ["control"] * 2
    async with asyncio.timeout(DEADLINE_S):
        while not all(task.done() for task in sending):
            clock.now += uplink.piece / 1e6
            await asyncio.sleep(0.001)
    assert len(order) == 2 + 3 * 24
    until_last_gradient = order[2 : len(order) - order[::-1].index("gradient")]
    assert until_last_gradient.count("activation") in range(5, 8), "a quarter of the gradients' share"
    assert until_last_gradient.count("bulk") in range(1, 4), "a twelfth: it does not starve"


# ---------------------------------------------------------------- between real hosts


def frame(microbatch: int, direction: Direction, size: int) -> m.Frame:
    return m.Frame(FrameKey(PASS, 1, direction, Microbatch(microbatch)), bytes(size))


async def test_a_limited_network_keeps_its_rate_and_control_is_not_held_up(pair: Pair) -> None:
    rate, size, count = 1 << 20, 64 << 10, 12
    a, b = await pair.start(first={"uplink": Uplink(rate)})
    for message in (m.Released(PASS, 0, ()), frame(99, Direction.FORWARD, 1), frame(99, Direction.BACKWARD, 1)):
        a.send(b.me, message)
        await pair.two.next_of(pair.two.messages)  # the streams are open
    loop = asyncio.get_running_loop()
    started = loop.time()
    for k in range(count):
        a.send(b.me, frame(k, Direction.FORWARD, size))
    a.send(b.me, frame(0, Direction.BACKWARD, size))
    a.send(b.me, m.Released(PASS, 1, ()))
    arrived = [(await pair.two.next_of(pair.two.messages))[1] for _ in range(count + 2)]
    took = loop.time() - started
    assert took >= ((count + 1) * size - rate * 0.1) / rate, "a bucket cannot be outrun"
    assert arrived.index(m.Released(PASS, 1, ())) <= 2
    assert arrived.index(frame(0, Direction.BACKWARD, size)) <= 4, "overtakes the activations"
    activations = [x.key.microbatch for x in arrived if isinstance(x, m.Frame) and x.key.direction is Direction.FORWARD]
    assert activations == list(range(count))
    assert a.traffic.total().sent == b.traffic.total().received


async def test_state_and_frames_share_a_limited_link(pair: Pair) -> None:
    """Neither waits for the end of the other: state gets its quarter beside activations."""
    rate, size = 1 << 20, 32 << 10
    a, b = await pair.start(first={"uplink": Uplink(rate)})
    state = bytes(range(256)) * 512  # 128 KiB

    async def handler(_requester: Actor, _request: bytes) -> Transfer:
        return Transfer.of(state)

    a.bulk.serve(handler)
    for k in range(64):  # 2 MiB
        a.send(b.me, frame(k, Direction.FORWARD, size))
    await pair.two.next_of(pair.two.messages)
    transfer = await b.bulk.fetch(a.me, b"state")
    assert await transfer.read() == state
    during = pair.two.messages.qsize()
    assert 4 <= during < 63, "some frames came meanwhile, and some are still to come"
    for _ in range(63):
        await pair.two.next_of(pair.two.messages)


async def test_what_is_void_is_not_sent_any_more(pair: Pair) -> None:
    """Parts of an attempt that came to nothing, under whichever of its tables: those of others go on waiting."""
    a, b = await pair.start(first={"uplink": Uplink(1 << 18)})

    def part(number: int, bucket: int, step: int = 0, contributor: Actor | None = None) -> m.ReducePart:
        attempt = Attempt(PassId(Term(1), StepNumber(step)), StageIndex(0), number)
        return m.ReducePart(PartKey(attempt, bucket, contributor or a.me), 1, bytes(16 << 10))

    for bucket in range(8):
        a.send(b.me, part(bucket % 2, bucket))
    a.send(b.me, part(2, 0))
    a.send(b.me, part(0, 0, step=1))
    await pair.two.next_of(pair.two.messages)  # the stream is open: one has come, one is on its way
    a.withdraw(Attempt(PassId(Term(1), StepNumber(0)), StageIndex(0), 1))
    came = []
    while not came or came[-1] != part(0, 0, step=1):
        came.append((await pair.two.next_of(pair.two.messages))[1])
    assert part(2, 0) in came and len(came) <= 4
    a.send(b.me, part(0, 6))
    assert (await pair.two.next_of(pair.two.messages))[1] == part(0, 6), "if it is wanted again, it is sent again"


async def test_what_waits_for_its_turn_is_not_sent_round_a_corner_too(
    pair: Pair, make_host: Callable[[], Awaitable[Host]], make_recorder: Callable[[], Any]
) -> None:
    """On a slow link frames are asked for again, in the end through somebody else."""
    a, b = await pair.start(first={"uplink": Uplink(1 << 18)})
    third = make_recorder()
    host = await make_host()
    c = third.network(host)
    await c.start()
    a.learn(c.me, await host.addresses())
    last = frame(20, Direction.FORWARD, 16 << 10)
    for k in range(20):
        a.send(b.me, frame(k, Direction.FORWARD, 16 << 10))
    a.send(b.me, last)
    await pair.two.next_of(pair.two.messages)  # the stream is open, and 19 are waiting
    a.send(c.me, m.Relay(a.me, b.me, last))
    other = m.Relay(a.me, b.me, frame(21, Direction.FORWARD, 1))
    a.send(c.me, other)
    assert (await third.next_of(third.messages))[1] == other
    while (await pair.two.next_of(pair.two.messages))[1] != last:
        pass
    a.send(c.me, m.Relay(a.me, b.me, last))  # it has left, and is missed all the same
    assert (await third.next_of(third.messages))[1] == m.Relay(a.me, b.me, last)
    await c.close()
