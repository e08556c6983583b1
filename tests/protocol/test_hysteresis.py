"""What a move has done is not undone at once, unless the swarm is another one by then."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.coordinator.membership.stage_costs import Lineup, Worker
from swarm.protocol.coordinator.placement.hysteresis import Hysteresis
from swarm.protocol.coordinator.placement.planner import Move, Stay, plan_move
from swarm.protocol.ids import Actor

DWELL_S = 10.0


def test_the_way_back_waits_and_the_same_way_does_not() -> None:
    hysteresis = Hysteresis()
    hysteresis.moved(0, 1, 100.0)
    assert hysteresis.barred(100.0, DWELL_S) == {(1, 0)}
    assert hysteresis.barred(119.0, DWELL_S) == {(1, 0)}
    assert not hysteresis.barred(120.0, DWELL_S)
    hysteresis.moved(0, 1, 120.0)
    assert hysteresis.barred(121.0, DWELL_S) == {(1, 0)}, "and it has not turned"


def test_every_turn_waits_twice_as_long_until_somebody_comes_or_goes() -> None:
    hysteresis = Hysteresis()
    hysteresis.moved(0, 1, 0.0)
    now, waits = 20.0, []
    for turn in range(1, 5):
        way = (0, 1) if turn % 2 == 0 else (1, 0)
        hysteresis.moved(*way, now)
        waits.append(next(s for s in range(1000) if not hysteresis.barred(now + s, DWELL_S)))
        now += waits[-1]
    assert waits == [40, 80, 160, 320]
    hysteresis.moved(0, 1, now)
    hysteresis.moved(2, 3, now)
    hysteresis.changed(0)
    assert hysteresis.barred(now, DWELL_S) == {(3, 2)}, "the other two are as they were"


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.0, 50.0)).filter(lambda m: m[0] != m[1]),
        max_size=60,
    )
)
def test_who_obeys_turns_ever_more_rarely(wishes: list[tuple[int, int, float]]) -> None:
    """Whatever a wavering measurement asks for: between two stages the direction turns as often as time doubles."""
    hysteresis = Hysteresis()
    now, made = 0.0, dict[frozenset[int], list[tuple[int, float]]]()
    for source, stage, pause in wishes:
        now += pause
        if (source, stage) not in hysteresis.barred(now, DWELL_S):
            hysteresis.moved(source, stage, now)
            made.setdefault(frozenset((source, stage)), []).append((source, now))
    for moves in made.values():
        gaps = [later - sooner for (a, sooner), (b, later) in itertools.pairwise(moves) if a != b]
        assert all(gap >= DWELL_S * 2.0 ** (turn + 1) for turn, gap in enumerate(gaps[:6]))


def test_a_barred_way_leaves_the_others_open() -> None:
    slow, quick, idle = (
        tuple(Worker(Actor(f"{crew}{n}", 1), 1.0) for n in range(size)) for crew, size in (("a", 1), ("b", 4), ("c", 4))
    )
    lineup = Lineup((slow, quick, idle), (1.0, 1.0, 1.0), replicas=1, most=9)
    free = plan_move(lineup, 0.0, 100.0)
    assert isinstance(free, Move) and free.stage == 0
    other = plan_move(lineup, 0.0, 100.0, {(free.source, 0)})
    assert isinstance(other, Move) and (other.stage, other.source) == (0, 3 - free.source)
    assert isinstance(plan_move(lineup, 0.0, 100.0, {(1, 0), (2, 0)}), Stay)
