"""State lets training pass on a line whose rate nobody has told, and is never held for long."""

from __future__ import annotations

import asyncio

import pytest

from swarm.net.channel import WEIGHTS, lanes_of
from swarm.net.courtesy import LONGEST_WAIT_S, Courtesy
from swarm.net.handshake import Channel
from swarm.net.lane import Lane

DEADLINE_S = 60.0
PIECE = 1000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lanes(clock: Clock) -> dict[Channel, Lane]:
    courtesy = Courtesy(clock)
    return {c: courtesy.lane(weight, c is Channel.BULK) for c, weight in WEIGHTS.items() if weight}


async def settled() -> None:
    """Until every task has done what it can without the time going on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def sending(lane: Lane, pieces: list[int]) -> None:
    """As a stream that is never held up."""
    while True:
        await lane.take(lane.frame(), PIECE)
        lane.wrote(PIECE)
        pieces.append(PIECE)
        if len(pieces) >= 1000:
            return


@pytest.mark.parametrize("first", [Channel.GRADIENT, Channel.REDUCE])
async def test_while_training_is_held_up_state_gets_its_share_by_weight(
    first: Channel, lanes: dict[Channel, Lane]
) -> None:
    training, state = lanes[first], lanes[Channel.BULK]
    weight = WEIGHTS[first]
    assert weight is not None
    await training.take(0, PIECE)  # and the line takes its time
    left: list[int] = []
    bulk = asyncio.create_task(sending(state, left))
    for _ in range(600):
        await settled()
        training.wrote(PIECE)
        await training.take(0, PIECE)  # the next piece follows at once
    await settled()
    assert 600 / weight - 2 <= len(left) <= 600 / weight + 1
    training.wrote(PIECE)
    async with asyncio.timeout(DEADLINE_S):
        await bulk  # nothing holds up training now


async def test_what_is_not_held_up_makes_nobody_wait(lanes: dict[Channel, Lane]) -> None:
    training, state = lanes[Channel.ACTIVATION], lanes[Channel.BULK]
    for _ in range(100):
        await training.take(0, PIECE)
        training.wrote(PIECE)
        async with asyncio.timeout(DEADLINE_S):
            await state.take(0, PIECE)


async def test_behind_a_receiver_that_takes_nothing_state_goes_on(lanes: dict[Channel, Lane], clock: Clock) -> None:
    await lanes[Channel.REDUCE].take(0, PIECE)  # never written
    state = lanes[Channel.BULK]
    waiting = asyncio.create_task(state.take(0, PIECE))
    await settled()
    assert not waiting.done()
    clock.now += LONGEST_WAIT_S
    await lanes[Channel.GRADIENT].take(0, 1)
    lanes[Channel.GRADIENT].wrote(1)  # it looks again, and this is no share yet
    async with asyncio.timeout(DEADLINE_S):
        await waiting


async def test_without_a_limit_all_but_control_have_a_lane_and_with_one_control_too() -> None:
    assert set(lanes_of(None)) == set(Channel) - {Channel.CONTROL}
    assert set(lanes_of(1e6)) == set(Channel)
