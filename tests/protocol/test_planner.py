"""The planner as a pure function: what a claim and a move may never do, and when they are made."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.coordinator.membership.stage_costs import Lineup, Worker
from swarm.protocol.coordinator.placement.planner import WORTH, Claim, Move, Stay, claim, plan_move, recruit
from swarm.protocol.ids import Actor, StageIndex

speeds = st.floats(0.05, 20.0)
costs = st.floats(0.2, 5.0)
uplinks = st.floats(0.5, 20.0) | st.just(math.inf)


@st.composite
def lineups(draw: st.DrawFn) -> Lineup:
    stages = draw(st.integers(1, 5))
    crews, number = [], 0
    for _ in range(stages):
        crew = []
        for _ in range(draw(st.integers(0, 5))):
            actor = Actor(f"p{number:02}", 1)
            ready = draw(st.booleans())
            movable = ready and draw(st.booleans())
            crew.append(Worker(actor, draw(speeds), movable=movable, ready=ready, uplink=draw(uplinks)))
            number += 1
        crews.append(tuple(crew))
    replicas = draw(st.integers(1, 3))
    most = replicas + draw(st.integers(0, 4))
    frames = tuple(float((s > 0) + (s < stages - 1)) for s in range(stages)) if draw(st.booleans()) else ()
    return Lineup(tuple(crews), tuple(draw(costs) for _ in range(stages)), replicas, most, frames)


def line(*crews: list[float], replicas: int = 1, most: int = 9, costs: tuple[float, ...] = ()) -> Lineup:
    """Ready, movable peers of these speeds."""
    workers = tuple(tuple(Worker(Actor(f"s{s}n{n}", 1), v) for n, v in enumerate(crew)) for s, crew in enumerate(crews))
    return Lineup(workers, costs or (1.0,) * len(crews), replicas, most)


def with_newcomer(lineup: Lineup, stage: int, speed: float, uplink: float = math.inf) -> Lineup:
    crews = [list(crew) for crew in lineup.crews]
    crews[stage].append(Worker(Actor("new", 1), speed, uplink=uplink))
    return dataclasses.replace(lineup, crews=tuple(map(tuple, crews)))


def moved(lineup: Lineup, move: Move) -> Lineup:
    crews = [list(crew) for crew in lineup.crews]
    worker = next(w for w in crews[move.source] if w.actor == move.actor)
    crews[move.source].remove(worker)
    crews[move.stage].append(worker)
    return dataclasses.replace(lineup, crews=tuple(map(tuple, crews)))


# ---------------------------------------------------------------- claims


def test_a_newcomer_takes_over_from_a_peer_on_call_where_all_stages_are_equally_fast() -> None:
    plain, on_call = (Worker(Actor(name, 1), 1.0, on_call=name == "a2") for name in ("a", "a2"))
    lineup = Lineup(((Worker(Actor("b", 1), 1.0),), (plain,), (on_call,)), (1.0, 1.0, 1.0), replicas=1, most=1)
    found = claim(lineup, 1.0)
    assert found == Claim(StageIndex(2), "stage 2 had 0 of 1 replicas (not counting a temporary seat)")
    without = dataclasses.replace(lineup, crews=lineup.crews[:2], costs=(1.0, 1.0))
    assert claim(without, 1.0) is None


@given(lineups(), speeds, uplinks)
def test_no_other_stage_would_have_raised_the_rate_more(lineup: Lineup, speed: float, uplink: float) -> None:
    found = claim(lineup, speed, uplink)
    open_stages = [s for s, crew in enumerate(lineup.crews) if len(crew) < lineup.most]
    if found is None:
        assert not open_stages
        return
    lacking = [s for s in open_stages if len(lineup.crews[s]) < lineup.replicas]
    assert found.stage in (lacking or open_stages)
    mine = min(with_newcomer(lineup, found.stage, speed, uplink).rates())
    for stage in lacking or open_stages:
        assert min(with_newcomer(lineup, stage, speed, uplink).rates()) <= mine * (1 + 1e-6)


def test_a_slow_stage_with_many_comes_before_a_fast_one_with_few() -> None:
    found = claim(line([1.0, 1.0, 1.0], [5.0]), 1.0)
    assert found == Claim(0, "stage 0, with 3 peers, where it raises the swarm from 3 to 4 microbatches/s")


def test_a_stage_that_costs_more_is_slower() -> None:
    found = claim(line([1.0], [1.0], costs=(1.0, 2.0)), 1.0)
    assert found is not None and found.stage == 1


def test_who_sends_slowly_takes_an_end_where_half_as_much_is_sent() -> None:
    equal = line([1.0], [1.0], [1.0], costs=(1.0, 0.9, 1.0))  # the one in the midst costs least: 1.11 a second there
    equal = dataclasses.replace(equal, crews=(equal.crews[0], line([0.9]).crews[0], equal.crews[2]))
    assert claim(equal, 1.0, uplink=50.0).stage == 1, "nobody says what has to be sent"  # type: ignore[union-attr]
    sending = dataclasses.replace(equal, frames=(100.0, 200.0, 100.0))
    assert claim(sending, 1.0).stage == 1, "its uplink is no limit"  # type: ignore[union-attr]
    assert claim(sending, 1.0, uplink=50.0).stage == 0  # type: ignore[union-attr]


def test_a_stage_of_fast_machines_on_slow_lines_is_a_slow_stage() -> None:
    behind = tuple(dataclasses.replace(w, uplink=10.0) for w in line([9.0, 9.0]).crews[0])
    lineup = dataclasses.replace(line([9.0, 9.0], [1.0]), frames=(100.0, 100.0))
    assert claim(lineup, 1.0).stage == 1  # type: ignore[union-attr]
    lineup = dataclasses.replace(lineup, crews=(behind, lineup.crews[1]))
    assert lineup.rates() == [0.2, 1.0]
    assert claim(lineup, 1.0) == Claim(
        0, "stage 0, with 2 peers, where it raises the swarm from 0.2 to 1 microbatches/s"
    )


def test_a_stage_without_its_planned_replicas_comes_first() -> None:
    found = claim(line([1.0, 1.0], [9.0], replicas=2), 1.0)
    assert found == Claim(1, "stage 1 had 1 of 2 replicas")


def test_equally_slow_stages_are_taken_in_order_and_a_full_one_not_at_all() -> None:
    assert claim(line([1.0], [1.0], [2.0]), 1.0).stage == 0  # type: ignore[union-attr]
    assert claim(line([1.0, 1.0], [1.0], most=2), 1.0).stage == 1  # type: ignore[union-attr]
    assert claim(line([1.0, 1.0], [1.0, 1.0], most=2), 1.0) is None


def test_a_stage_that_nobody_holds_comes_before_one_whose_peer_is_idle() -> None:
    lineup = line([1.0], [], [])
    assert claim(lineup, 1.0).stage == 1  # type: ignore[union-attr]
    lineup = dataclasses.replace(lineup, empty=frozenset({2}))
    assert claim(lineup, 1.0).stage == 2, "an idle peer holds stage 1"  # type: ignore[union-attr]
    assert claim(lineup, 1.0, shunned=[2]).stage == 2  # type: ignore[union-attr]


# ---------------------------------------------------------------- moves


@given(lineups(), st.floats(0.0, 500.0), st.floats(1.0, 5000.0))
def test_a_move_pays_and_takes_nothing_that_is_needed(lineup: Lineup, download_s: float, horizon_s: float) -> None:
    found = plan_move(lineup, download_s, horizon_s)
    if isinstance(found, Stay):
        assert found.reason
        return
    before, crew = lineup.rates(), lineup.crews[found.source]
    worker = next(w for w in crew if w.actor == found.actor)
    assert worker.movable
    assert before[found.stage] == min(before), "it goes to the slowest stage"
    assert any(w.ready for w in crew if w != worker), "never the last one that has the state"
    assert len(lineup.crews[found.stage]) < lineup.most
    after = moved(lineup, found).rates()
    assert min(after[found.source], after[found.stage]) > before[found.stage], "the slower of the two gets faster"
    assert found.gain - found.cost >= WORTH * min(before) * horizon_s, "and it pays"
    assert found.gain > 0 and found.cost >= 0


@given(lineups(), st.floats(0.1, 100.0), st.floats(1.0, 5000.0))
def test_moves_come_to_an_end(lineup: Lineup, download_s: float, horizon_s: float) -> None:
    """No thrash: with unchanged speeds, moves one after the other never go back and forth."""
    seen = set()
    for _ in range(60):
        placed = tuple(frozenset(w.actor for w in crew) for crew in lineup.crews)
        assert placed not in seen
        seen.add(placed)
        found = plan_move(lineup, download_s, horizon_s)
        if isinstance(found, Stay):
            return
        lineup = moved(lineup, found)
    pytest.fail("sixty moves and no end")


def test_two_equally_slow_stages_are_both_helped_though_one_move_alone_gains_nothing() -> None:
    lineup = line([1.0], [1.0], [1.0] * 4)
    found = plan_move(lineup, 10.0, 1000.0)
    assert isinstance(found, Move) and (found.source, found.stage) == (2, 0)
    assert "1 → 2 microbatches/s after 2 moves" in found.reason
    assert found.gain == pytest.approx(980.0)


def test_a_download_that_takes_too_long_is_not_worth_it() -> None:
    lineup = line([1.0, 1.0], [1.0] * 4)
    assert isinstance(plan_move(lineup, 10.0, 1000.0), Move)
    assert isinstance(plan_move(lineup, 990.0, 1000.0), Stay)


def test_the_lost_work_of_the_way_is_counted() -> None:
    """Here the giving stage becomes the slowest while the peer is under way."""
    lineup = line([3.0], [2.0, 2.0])
    assert isinstance(plan_move(lineup, 10.0, 1000.0), Stay), "3 and 4 would become 5 and 2"
    found = plan_move(line([1.0], [1.0], [0.9, 0.9]), 100.0, 1000.0)
    assert isinstance(found, Stay), "of the two slowest only one can be helped"
    found = plan_move(line([2.0], [1.0, 1.0], [1.5, 1.5]), 100.0, 1000.0)
    assert isinstance(found, Stay), "each of three does as much as the others less one can"
    found = plan_move(line([1.0], [2.0], [0.95, 0.95, 0.1], costs=(1.0, 1.0, 1.0)), 100.0, 1000.0)
    assert isinstance(found, Move)
    assert (found.gain, found.cost) == (pytest.approx(90.0), pytest.approx(0.0))
    found = plan_move(line([1.0], [1.0], [0.5, 0.5, 0.6, 0.6], costs=(1.0, 1.0, 1.0)), 100.0, 1000.0)
    assert isinstance(found, Stay) or found.cost >= 0.0


def test_what_earlier_moves_gain_while_the_last_is_under_way_is_no_negative_cost() -> None:
    lineup = line([1.0, 1.0, 1.0, 3.0], [1.0, 9.0], [1.0, 1.0, 5.0], [1.0, 1.0, 5.0], costs=(1.0, 2.0, 1.0, 1.0))
    found = plan_move(lineup, 3.0, 7.0)
    assert isinstance(found, Move) and "5 → 6 microbatches/s after 2 moves" in found.reason
    # 5 a second for 3 s, then 5.5 for 3 s, then 6 for the last one: 37.5 instead of 35
    assert (found.gain, found.cost) == (pytest.approx(2.5), 0.0)


def test_planned_replicas_are_not_given_to_a_stage_with_as_many() -> None:
    assert isinstance(plan_move(line([1.0], [9.0, 9.0], replicas=2), 1.0, 1000.0), Stay)
    assert isinstance(plan_move(line([1.0], [9.0, 9.0, 9.0], replicas=2), 1.0, 1000.0), Move)


# ---------------------------------------------------------------- an empty stage


@given(lineups())
def test_recruiting_leaves_a_copy_behind(lineup: Lineup) -> None:
    for stage, crew in enumerate(lineup.crews):
        found = recruit(lineup, stage) if not crew else None  # type: ignore[arg-type]
        if found is None:
            continue
        source = lineup.crews[found.source]
        rest = [w for w in source if w.actor != found.actor]
        assert rest and found.source != stage
        assert any(w.ready for w in rest) or not any(w.ready for w in source)


def test_who_lacks_the_version_is_recruited_first() -> None:
    crews = ((Worker(Actor("a", 1), 1.0), Worker(Actor("b", 1), 9.0, ready=False)), ())
    found = recruit(Lineup(crews, (1.0, 1.0), 1, 9), 1)  # type: ignore[arg-type]
    assert found is not None and found.actor == Actor("b", 1)


def test_nobody_is_given_a_stage_that_does_not_fit() -> None:
    slow, fast = Worker(Actor("slow", 1), 1.0), Worker(Actor("fast", 1), 9.0)
    lineup = Lineup(((fast,), (slow,), (slow,)), (1.0, 1.0, 1.0), replicas=1, most=2)
    assert claim(lineup, 1.0, barred=frozenset((1,))).stage == 2  # type: ignore[union-attr]
    assert claim(lineup, 1.0, barred=frozenset((0, 1, 2))) is None
    pair = tuple(Worker(Actor(f"p{i}", 1), 5.0, barred=frozenset((1,))) for i in range(2))
    lineup = Lineup((pair, (slow,)), (1.0, 1.0), replicas=1, most=3)
    assert isinstance(plan_move(lineup, 1.0, 1e6), Stay)
    assert recruit(Lineup((pair, ()), (1.0, 1.0), replicas=1, most=3), StageIndex(1)) is None
