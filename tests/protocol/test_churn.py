"""How often peers leave, and how many replicas that allows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.events import Event, ManyReplicas
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.placement.churn import (
    AGAIN_S,
    DEATH_IN_A_REDUCE,
    PRIOR_PER_S,
    REMEMBERED,
    Churn,
    expected_quiet_s,
    replica_cap,
)
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.ids import Actor, Term
from swarm.protocol.io import Emit
from swarm.protocol.outbox import Outbox
from swarm.simulation.runs.plan import small_settings


def test_what_is_seen_outweighs_what_is_usual() -> None:
    churn = Churn()
    assert churn.departures_per_s == pytest.approx(PRIOR_PER_S)
    churn.present(100, 0.0)
    churn.present(100, 36_000.0)
    assert churn.departures_per_s == pytest.approx(PRIOR_PER_S / 101), "a thousand peer-hours, and nobody left"
    for number in range(2000):
        churn.left(f"peer{number}", 36_000.0)
    assert churn.departures_per_s == pytest.approx(2006 / 1010 / 3600)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1000.0), st.integers(1, 500), st.integers(1, 8))
def test_a_reduce_is_seldom_disturbed(rate: float, reduce_s: float, microbatches: int, planned: int) -> None:
    cap = replica_cap(rate, reduce_s, microbatches, planned)
    assert planned <= cap <= max(planned, microbatches)
    if cap > planned:
        assert 1 - math.exp(-cap * rate * reduce_s) <= DEATH_IN_A_REDUCE + 1e-9


def test_the_cap_of_an_hourly_life_and_a_reduce_of_ten_seconds() -> None:
    assert replica_cap(0.6 / 3600, 10.0, 128, 2) == 63
    assert replica_cap(0.6 / 3600, 100.0, 128, 2) == 6
    assert replica_cap(0.6 / 3600, 10.0, 16, 2) == 16, "nobody is without a microbatch"


def test_quiet_is_the_shorter_the_more_peers() -> None:
    assert expected_quiet_s(0.6 / 3600, 10) == pytest.approx(300.0)
    assert expected_quiet_s(0.6 / 3600, 20) == pytest.approx(150.0)


def test_who_plans_more_replicas_than_reduces_bear_is_told_so_once() -> None:
    for reduce_s, advised in ((10.0, None), (100.0, 6)):
        settings = small_settings(stages=1, microbatches=16, steps=9, replicas=8)
        out, members = Outbox(Actor("coordinator", 0)), Members()
        rebalancing = Rebalancing(settings, History(Term(1), None, None, 0), members, StageCosts(1), out)
        for _ in range(3):
            rebalancing.decided(2 * reduce_s, reduce_s)
        told: list[Event] = [action.event for action in out.take() if isinstance(action, Emit)]
        expected = [] if advised is None else [ManyReplicas(8, advised, reduce_s, pytest.approx(0.6))]
        assert told == expected


def test_a_device_that_comes_and_goes_all_the_time_does_not_make_all_look_unreliable() -> None:
    churn = Churn()
    churn.present(10, 0.0)
    churn.present(10, 3600.0)
    for second in range(3600):
        churn.left("roaming", float(second))
    assert churn.departures_per_s == pytest.approx((3600 / AGAIN_S + 6) / 72_000)
    for number in range(REMEMBERED + 10):
        churn.left(f"peer{number}", 3600.0)
    assert len(churn._left_at) == REMEMBERED
