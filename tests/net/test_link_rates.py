"""What links carry, by the frames that come in: by hand, and over a real connection of a known rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.link_rates import AT_ONCE, FASTEST, LEAST, MOST_SENDERS, LinkRates
from swarm.net.uplink import Uplink
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term

Pair = Any
"""Of conftest.py, reached through fixtures: tests are not importable."""
ONE, TWO = Actor("one", 1), Actor("two", 1)
RATE = 2_000_000
SIZE = 1 << 20


def test_the_median_of_large_frames_without_what_comes_at_once() -> None:
    rates = LinkRates()
    for seconds in (1.0, 2.0, 50.0):
        rates.arrived(ONE, AT_ONCE + 1_000_000, seconds)
    rates.arrived(TWO, AT_ONCE + 1_000_000, 10.0)
    assert rates.slowest(9) == [(TWO, pytest.approx(1e5)), (ONE, pytest.approx(5e5))]
    assert rates.slowest(1) == [(TWO, pytest.approx(1e5))]
    assert rates.fastest(1) == [(ONE, pytest.approx(5e5))]


def test_small_frames_say_nothing() -> None:
    rates = LinkRates()
    rates.arrived(ONE, LEAST - 1, 100.0)
    assert rates.slowest(9) == []


@given(st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 1e9)), max_size=20))
def test_whatever_comes_in_is_a_rate_that_can_be_told(frames: list[tuple[int, float]]) -> None:
    rates = LinkRates()
    for nbytes, seconds in frames:
        rates.arrived(ONE, nbytes, seconds)
    assert all(0 < rate <= FASTEST * (1 + 1e-9) for _, rate in rates.slowest(9))


def test_strangers_cannot_fill_the_memory() -> None:
    rates = LinkRates()
    for incarnation in range(2 * MOST_SENDERS):
        rates.arrived(Actor("stranger", incarnation), LEAST, 1.0)
    assert len(rates.slowest(10 * MOST_SENDERS)) == MOST_SENDERS


async def test_a_link_with_a_limit_is_measured_near_it(pair: Pair) -> None:
    a, b = await pair.start(first={"uplink": Uplink(RATE)})
    for number in range(4):
        key = FrameKey(PassId(Term(1), StepNumber(2)), 1, Direction.FORWARD, Microbatch(number))
        a.send(b.me, m.Frame(key, bytes(SIZE)))
    for _ in range(4):
        await pair.two.next_of(pair.two.messages)
    ((sender, rate),) = b.link_rates.slowest(9)
    assert sender == a.me
    assert rate < 1.5 * RATE, "a loaded machine makes it less, nothing makes it more"
    assert not a.link_rates.slowest(9), "nothing came the other way"
