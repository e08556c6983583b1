"""Of replicas with the same summed bytes, most people's word about these bytes counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.audit.misreports import Misreports
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.preparation import Contradicted
from swarm.protocol.ids import Actor, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.messages import Open, Prepared
from swarm.protocol.update import STILL

NOBODY: frozenset[Actor] = frozenset()
A, B, C, D = (Actor(name, 1) for name in "abcd")


def prepared(wrong: dict[Actor, dict], roster: tuple[Actor, ...] = (A, B, C), who: People | None = None) -> PassState:
    """One stage. `wrong`: for some actors, the fields of their reports that differ from the others'."""
    tables = wire([roster], dict.fromkeys(roster, 1.0), 6)
    opening = Open(PassId(Term(1), StepNumber(0)), PassKind.TRAIN, tables, None)
    state = PassState(opening, weights=dict.fromkeys(roster, 1.0), now=0.0, people=who)
    for actor in roster:
        said = Prepared(state.attempt(StageIndex(0)), "digest", 1.0, 2.0)
        state.preparation.prepare(actor, 0, replace(said, **wrong.get(actor, {})))
    return state


def people(*groups: tuple[Actor, ...]) -> People:
    found = People()
    found.learn(Device(f"{n:032x}", 4, actor.peer) for n, group in enumerate(groups) for actor in group)
    for actor in (actor for group in groups for actor in group):
        found.came(actor.peer)
    return found


@pytest.mark.parametrize("actor", [A, B, C])
@pytest.mark.parametrize("field", [{"finite": False}, {"squared_norm": 5.0}, {"loss_sum": 9.0}, {"seal": 1}])
def test_most_peoples_word_about_the_same_bytes_counts(actor: Actor, field: dict) -> None:
    preparation = prepared({actor: field}).preparation
    assert preparation.disagreeing() is None
    decision = preparation.decide(10, 100.0, STILL, NOBODY)
    assert decision is not None and decision.scale > 0 and decision.loss_sum == 2.0
    (found,) = preparation.contradicted(NOBODY)
    assert found.actor == actor and found.plain == ("finite" in field)
    assert [answer.finite for answer in preparation.answers(NOBODY)] == [True]
    assert preparation.not_finite(NOBODY) == []


@pytest.mark.parametrize("wrong", [{A: {"digest": "other"}}, {A: {"finite": False}, B: {"squared_norm": 3.0}}])
def test_other_bytes_or_no_majority_leave_it_open(wrong: dict[Actor, dict]) -> None:
    preparation = prepared(wrong).preparation
    assert preparation.disagreeing() == 0 and preparation.decide(10, 1.0, STILL, NOBODY) is None


def test_of_two_replicas_neither_is_believed() -> None:
    assert prepared({A: {"finite": False}}, (A, B)).preparation.disagreeing() == 0


def test_devices_of_one_person_have_one_vote() -> None:
    wrong = {A: {"finite": False}, B: {"finite": False}}
    assert prepared(wrong, who=people((A, B), (C,))).preparation.disagreeing() == 0
    one_more = prepared(wrong, (A, B, C, D), people((A, B), (C,), (D,))).preparation
    assert {found.actor for found in one_more.contradicted(NOBODY)} == {A, B}


def test_the_second_plain_misreport_is_one_too_many() -> None:
    misreports = Misreports()
    plain, other = (Contradicted(A, StageIndex(0), "", each) for each in (True, False))
    assert [misreports.add(each) is not None for each in (other, other, plain, other, plain)] == [False] * 4 + [True]
