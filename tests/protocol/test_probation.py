"""Who failed by its own fault is tried seldom, and with little."""

import pytest

from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.coordinator.passes import assignment
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.ids import Actor, Pair, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import LinkLost, Received, Tick
from swarm.protocol.messages import Join, Status
from swarm.simulation.runs.plan import small_settings


def in_step(step: int, index: int = 0) -> PassId:
    return PassId(Term(1), StepNumber(step), index)


def test_a_black_hole_is_tried_less_and_less_often() -> None:
    probation, tried = Probation(People()), []
    for step in range(200):
        if not probation.is_benched("hole", step):
            tried.append(step)
            probation.strike("hole", in_step(step))
    assert tried == [0, 1, 3, 7, 15, 31, 63, 127]


def test_it_is_tried_with_one_microbatch_until_all_is_forgiven() -> None:
    probation = Probation(People())
    assert not probation.is_tried("peer")
    for step in (0, 1, 3):
        probation.strike("peer", in_step(step))
    assert probation.strikes("peer") == 3
    for strikes in (3, 2, 1):
        assert probation.is_tried("peer") and probation.strikes("peer") == strikes
        probation.worked("peer", in_step(4))
        assert not probation.is_benched("peer", 4)
    assert not probation.is_tried("peer")
    probation.worked("peer", in_step(4))


def test_one_pass_is_one_strike() -> None:
    probation = Probation(People())
    probation.strike("peer", in_step(5))
    probation.strike("peer", in_step(5))
    assert probation.strikes("peer") == 1
    assert probation.is_benched("peer", 5) and not probation.is_benched("peer", 6)


def test_what_went_wrong_in_a_step_is_not_forgiven_for_that_step() -> None:
    probation = Probation(People())
    probation.strike("peer", in_step(5))
    probation.worked("peer", in_step(5))
    assert probation.strikes("peer") == 1
    probation.worked("peer", in_step(6))
    assert not probation.is_tried("peer")


def test_who_is_accused_comes_back_later_than_who_accuses() -> None:
    probation = Probation(People())
    probation.strike("victim", in_step(5))
    probation.strike("accused", in_step(5), 2)
    assert [probation.is_benched(peer, 6) for peer in ("victim", "accused")] == [False, True]
    assert not probation.is_benched("accused", 7)


def test_whom_a_broken_link_leaves_without_neighbour_does_not_hand_its_work_to_who_is_tried() -> None:
    first, cut, other, tried = (Actor(name, 1) for name in ("first", "cut", "other", "tried"))
    weights = {first: 1.0, cut: 1.0, other: 1.0, tried: 100.0}
    _, table = wire(
        [(first,), (cut, other, tried)], weights, 12, frozenset({Pair((first, cut))}), probed=frozenset({tried})
    )
    assert (len(table.assigned_to(cut)), len(table.assigned_to(other)), len(table.assigned_to(tried))) == (0, 11, 1)


def test_two_that_are_tried_at_once_are_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody could tell which of them keeps the other waiting."""
    rosters = [tuple(Actor(f"{stage}{number}", 1) for number in range(2)) for stage in range(2)]
    weights = {actor: 1.0 for roster in rosters for actor in roster}
    tried = frozenset(roster[0] for roster in rosters)

    def given() -> list[tuple[int, ...]]:
        tables = wire(rosters, weights, 6, frozenset(), probed=tried)
        return [tuple(table.assigned_to(table.roster[0])) for table in tables]

    assert [len(those) for those in given()] == [1, 1] and given()[0] != given()[1]
    monkeypatch.setattr(assignment, "_apart", lambda queue, *_: queue)
    assert given()[0] == given()[1]


def test_whoever_is_fenced_does_not_leave_its_work_to_who_is_tried() -> None:
    me, one, two, tried = Actor("coordinator", 0), *(Actor(name, 1) for name in ("one", "two", "tried"))
    core = CoordinatorCore(me, small_settings(stages=1, microbatches=12, steps=2, replicas=3), 0, None, None)
    core.handle(Tick(), 0.0)
    core.handle(TermWritten(1), 0.0)
    for step in (0, 1):
        core._cycle._failure_history.probation.strike(tried.peer, in_step(step))
    core._cycle._failure_history.probation.worked(tried.peer, in_step(9))
    for actor in (one, two, tried):
        core.handle(Received(actor, Join(actor)), 0.0)
    for actor in (one, two, tried):
        core.handle(Received(actor, Status(actor, StageIndex(0), 0, sequence=1)), 0.0)

    def shares() -> list[int]:
        assert core.open_pass is not None
        return [len(core.open_pass.pass_state.assigned_to(actor)) for actor in (one, two, tried)]

    (mine, *_, least) = shares()
    assert least == 1 and mine in (5, 6)
    core.handle(LinkLost(two), 0.1)
    core.handle(Tick(), 0.5)
    assert shares() == [11, 0, 1]


def test_a_strike_does_not_shorten_what_is_held_against_the_peer_in_the_same_pass() -> None:
    probation = Probation(People())
    probation.strike("peer", in_step(5))
    assert probation.hold("peer", in_step(5), 0, 9) == 9
    assert probation.strikes("peer") == 1
    assert probation.is_benched("peer", 14) and not probation.is_benched("peer", 15)
    assert probation.hold("peer", in_step(15), 3) == 3


@pytest.mark.parametrize(
    ("replicas", "audited_by", "left_out"),
    [(3, 0, "c"), (3, 2, "c"), (3, 3, ""), (5, 0, "cde"), (5, 2, "de"), (5, 3, "de")],
    ids=["no audit", "two compare", "three differ", "no audit of five", "most of five", "three of five"],
)
def test_an_audit_takes_back_only_whom_it_needs(replicas: int, audited_by: int, left_out: str) -> None:
    """All but two replicas are on probation, the later ones with more strikes."""
    actors = [Actor(name, 1) for name in "abcde"[:replicas]]
    settings = small_settings(stages=1, microbatches=12, steps=9, replicas=replicas)
    core = CoordinatorCore(Actor("coordinator", 0), settings, 0, None, None)
    core.handle(Tick(), 0.0)
    core.handle(TermWritten(1), 0.0)
    for strikes, actor in enumerate(actors[2:], 1):
        core._cycle._failure_history.probation.hold(actor.peer, in_step(0), strikes, 5)
    core._cycle._failure_history.audited_by = audited_by
    for actor in actors:
        core.handle(Received(actor, Join(actor)), 0.0)
    for actor in actors:
        core.handle(Received(actor, Status(actor, StageIndex(0), 0, sequence=1)), 0.0)
    core._cycle._placement._bench.choose(0.1)
    assert {member.actor.peer for member in core.members if member.benched} == set(left_out)
    assert {member.actor.peer for member in core.members if member.on_probation} == set(left_out)
