"""Audits in which each part of a step is done again by a sibling: who gets which part, and what is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.protocol.coordinator.audit.audits import Audits, Ruling
from swarm.protocol.coordinator.audit.culprit_search import CulpritSearch
from swarm.protocol.coordinator.audit.exchange import Doers, dealt_otherwise, exchange
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answer, OwnSums
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.messages import StageTable
from swarm.protocol.sketch import PROJECTIONS, written
from swarm.simulation.runs.plan import small_settings

A, B, C, D = (Actor(name, 1) for name in "abcd")
EQUAL = dict.fromkeys((A, B, C, D), 1.0)


class Owners(People):
    """Devices whose names are in `pairs` are one person's."""

    def __init__(self, *pairs: str) -> None:
        super().__init__()
        self._pairs = pairs

    def of(self, peer: str) -> str:
        return next((pair for pair in self._pairs if peer in pair), peer)


def exchanged(
    rosters: list[list[Actor]],
    weights: Mapping[Actor, float] = EQUAL,
    blocked: frozenset[Pair] = frozenset(),
    probed: frozenset[Actor] = frozenset(),
    people: People | None = None,
    seed: int = 0,
) -> tuple[tuple[StageTable, ...], Doers]:
    tables = wire(rosters, weights, 8, blocked, 0, probed)
    first = CulpritSearch(tables, (), weights, frozenset())
    rng = Random(seed)
    return tables, exchange(
        first, rosters, weights, blocked, probed, people or People(), lambda what: rng.getrandbits(63)
    )


@pytest.mark.parametrize("seed", range(20))
def test_each_part_goes_to_one_sibling_whole(seed: int) -> None:
    tables, doers = exchanged([[A, B, C], [D]], seed=seed)
    for actor, part in tables[0].shares().items():
        assert len({doers[0][m] for m in part}) == 1
        assert actor not in {doers[0][m] for m in part}
    assert set(doers[1]) == {D}, "who is alone has all of its stage again"


def test_nobody_gets_a_part_of_the_same_person() -> None:
    for seed in range(20):
        tables, doers = exchanged([[A, B, C, D]], people=Owners("ab", "cd"), seed=seed)
        pairs = {(tables[0].assignee(m).peer, doers[0][m].peer) for m in range(8)}
        assert not pairs & {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    assert exchanged([[A, B, C]], people=Owners("ab"))[1] == (), "one of both would get the other's"


def test_a_slow_machine_does_not_get_the_part_of_a_fast_one() -> None:
    assert exchanged([[A, B]])[1]
    assert exchanged([[A, B]], {A: 4.0, B: 1.0})[1] == ()


def test_of_unequal_machines_those_of_a_kind_change_parts() -> None:
    weights = {A: 1.0, B: 1.0, C: 1.4, D: 1.4}
    for seed in range(20):
        tables, doers = exchanged([[A, B, C, D]], weights, seed=seed)
        seconds = [sum(doer == actor for doer in doers[0]) / weights[actor] for actor in weights]
        usual = max(len(part) / weights[actor] for actor, part in tables[0].shares().items())
        assert max(seconds) <= 1.5 * usual


def test_who_is_on_probation_gets_no_more_than_one() -> None:
    assert exchanged([[A, B]], probed=frozenset((A,)))[1] == ()


def test_peers_that_cannot_reach_each_other_get_no_common_microbatch() -> None:
    assert exchanged([[A, B], [C]])[1]
    assert exchanged([[A, B], [C]], blocked=frozenset({Pair((A, C))}))[1] == ()


def test_who_has_gone_has_no_part() -> None:
    first = CulpritSearch(wire([[A, B, C]], EQUAL, 8), (), EQUAL, frozenset())
    assert exchange(first, [[A, B]], EQUAL, frozenset(), frozenset(), People(), lambda what: 0) == ()


class Steps:
    """Steps of one stage with three replicas. B may add the same number to its sums each time."""

    def __init__(self, added: int = 0, moved: bool = False, unlike: bool = False) -> None:
        members = Members()
        for actor in (A, B, C):
            members.add(actor, 0.0)
        settings = small_settings(stages=1, microbatches=6, steps=9, replicas=3)
        self._tolerance = 0.01 if unlike else 0.0
        settings = dataclasses.replace(
            settings, audit_every=1, audit_secret=b"secret", audit_tolerance=self._tolerance, screened=True
        )
        self.audits = Audits(settings, members)
        self._added, self._moved, self._unlike = added, moved, unlike
        self.rosters: list[tuple[Actor, ...]] = []
        self.rulings: list[Ruling] = []

    def decide(self, step: int) -> list[str]:
        """Why it was done again, each time."""
        reasons: list[str] = []
        for attempt in range(100):
            rosters = self.audits.rosters(step, [[A, B, C]], EQUAL)
            (table,) = self.audits.tables(wire(rosters, EQUAL, 6))
            self.rosters.append(table.roster)
            if self._moved and attempt == 1:
                table = dataclasses.replace(table, number=1, assignment=(table.assignment[1], *table.assignment[1:]))
            ruling = self._judged(step, attempt, table)
            self.rulings.append(ruling)
            if not ruling.again or ruling.expelled:
                return reasons
            reasons.append(ruling.again)
        raise AssertionError(reasons[:10])

    def _judged(self, step: int, attempt: int, table: StageTable) -> Ruling:
        sums = {a: sum(1 << m for m in part) for a, part in table.shares().items()}
        if B in table.roster:
            sums[B] += self._added
        told = {a: (total, *[0] * (PROJECTIONS - 1)) for a, total in sums.items()}
        own = tuple(OwnSums(a, len(table.assigned_to(a)), each, written(each)) for a, each in told.items())
        whole = f"{sum(sums.values())}" + (f" {attempt}" if self._unlike else "")
        pass_state: Any = SimpleNamespace(
            pass_id=SimpleNamespace(step=step),
            tables=[table],
            weights=EQUAL,
            served=set(table.roster),
            preparation=SimpleNamespace(
                answers=lambda without: (Answer(whole, 1.0),),
                own_sums=lambda without: (own,),
            ),
        )
        decision: Any = SimpleNamespace(step=step, gradient_norm=1.0, skip=False)
        return self.audits.judge(pass_state, decision, frozenset())


def test_one_attempt_with_all_replicas_is_enough_for_everybody() -> None:
    steps = Steps()
    assert len(steps.decide(0)) == 1 and steps.rulings[-1].agreed
    assert steps.rosters == [(A, B, C)] * 2


def test_who_adds_the_same_each_time_is_found_by_its_part() -> None:
    """The sums are equal, whoever computes: only what each has contributed is not."""
    steps = Steps(added=1)  # too little for the screen
    reasons = steps.decide(0)
    assert "a peer's part gave a different result" in reasons[1]
    assert [each.actor for each in steps.rulings[-1].expelled] == [B]


def test_a_part_that_was_divided_anew_is_done_again_without_its_owner() -> None:
    steps = Steps(moved=True)
    reasons = steps.decide(0)
    assert "divided differently" in reasons[1] and steps.rulings[-1].agreed
    left_out = {actor for roster in steps.rosters[2:] for actor in (A, B, C) if actor not in roster}
    assert left_out, "an attempt at an exchange that is disturbed lets nobody off"


def test_where_the_last_bits_differ_half_of_the_replicas_do_it() -> None:
    steps = Steps(unlike=True)
    assert "last bits" in steps.decide(0)[1] and steps.rulings[-1].agreed
    before = len(steps.rosters)
    steps.decide(1)
    assert all(len(roster) < 3 for roster in steps.rosters[before + 1 :]), "it is known by now"


def test_who_is_left_in_an_audit_by_halves_computes_other_microbatches_than_before() -> None:
    """Otherwise it could lie about the same ones again, and come to the same sum."""
    first, wired = wire([[A, B, C], [D]], EQUAL, 3), wire([[A, B], [D]], EQUAL, 3)
    assert wired[0].shares()[B] == first[0].shares()[B]
    dealt = dealt_otherwise(wired, first)
    assert not any(dealt[0].assignee(m) == first[0].assignee(m) for m in range(3))
    assert [len(dealt[0].shares()[actor]) for actor in (A, B)] == [2, 1]


def test_the_same_pairs_are_neighbours_when_microbatches_are_dealt_otherwise() -> None:
    rosters, weights = [[A, B], [C, D]], {A: 1.0, B: 3.0, C: 2.0, D: 1.0}
    wired = wire(rosters, weights, 8, frozenset({Pair((A, D))}))
    dealt = dealt_otherwise(wired, wired)
    pairs = [{(one.assignee(m), two.assignee(m)) for m in range(8)} for one, two in (wired, dealt)]
    assert dealt != wired and pairs[0] == pairs[1]
