"""Which steps are audited for the sake of newcomers; what becomes of liars: tests/simulation/test_liars.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.protocol.coordinator.audit import audits, inquiry
from swarm.protocol.coordinator.audit.audits import Audits, Ruling
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.answer import Answer
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import StageTable
from swarm.protocol.settings import Settings
from swarm.simulation.runs.plan import small_settings

ONE, TWO, LATE = (Actor(name, 1) for name in ("one", "two", "late"))
WEIGHTS = dict.fromkeys((ONE, TWO, LATE), 1.0)
SETTINGS = dataclasses.replace(
    small_settings(stages=1, microbatches=4, steps=9, replicas=3), audit_every=1000, audit_secret=b"secret"
)


class Steps:
    """Steps of one stage, which come out the same whoever computes them, but for one that lies now and then."""

    def __init__(self, lies: Callable[[], bool] = lambda: False, settings: Settings = SETTINGS) -> None:
        """`lies`: whether ONE lies in the next attempt that it has a part in; always in the same way."""
        members = Members()
        for actor in (ONE, TWO, LATE):
            members.add(actor, 0.0)
        self.audits = Audits(settings, members)
        self.last = Ruling()
        self.came_to = ""
        self._lies = lies

    def decide(self, step: int, *workers: Actor) -> list[str]:
        """All three are there, and these do the work of the first attempt. Returns why it is done again each time."""
        reasons: list[str] = []
        able = list(workers)
        while True:
            (roster,) = self.audits.rosters(step, [[ONE, TWO, LATE]], WEIGHTS)
            busy = [actor for actor in able if actor in roster] or roster
            table = StageTable(0, tuple(roster), tuple(roster.index(busy[m % len(busy)]) for m in range(4)))
            (table,) = self.audits.tables((table,))
            ruling = self.last = self._judged(step, table)
            if not ruling.again:
                return reasons
            reasons.append(ruling.again)
            able = roster

    def _judged(self, step: int, table: StageTable) -> Ruling:
        busy = {table.roster[place] for place in table.assignment}
        self.came_to = "lie" if ONE in busy and self._lies() else "digest"
        pass_state: Any = SimpleNamespace(
            pass_id=SimpleNamespace(step=step),
            tables=[table],
            weights=dict.fromkeys(table.roster, 1.0),
            served=set(table.roster),
            preparation=SimpleNamespace(
                answers=lambda without: (Answer(self.came_to, 1.0),),
                own_sums=lambda without: ((),),
            ),
        )
        decision: Any = SimpleNamespace(step=step, gradient_norm=1.0, skip=False)
        return self.audits.judge(pass_state, decision, frozenset())


def test_who_had_nothing_to_do_when_newcomers_were_audited_is_audited_with_its_first_work() -> None:
    steps = Steps()
    assert "2 of its peers have never been" in steps.decide(0, ONE, TWO)[0]
    assert not steps.decide(1, ONE, TWO)
    assert "1 of its peers have never been" in steps.decide(2, ONE, TWO, LATE)[0]
    assert not steps.decide(3, ONE, TWO, LATE)


def test_who_was_audited_is_not_again_before_its_time() -> None:
    steps = Steps()
    assert "3 of its peers have never been" in steps.decide(0, ONE, TWO, LATE)[0]
    assert not any(steps.decide(step, ONE, TWO, LATE) for step in range(1, 9))


def test_the_same_lie_twice_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a doubt it must come to the same without each one in turn, so that who lies has no part in one of them."""
    monkeypatch.setattr(inquiry, "MOST_SEARCHES", 0)  # as when nobody was found
    everything = dataclasses.replace(SETTINGS, audit_every=1)
    doubted = settled = 0
    for seed in range(300):
        rng, often = Random(seed), [0.0]
        steps = Steps(lambda rng=rng, often=often: rng.random() < often[0], everything)  # type: ignore[misc]
        steps.decide(0, ONE, TWO, LATE)  # none of them is new any more
        often[0] = 0.3
        if any("differ" in reason for reason in steps.decide(1, ONE, TWO, LATE)):
            doubted += 1
            assert steps.came_to == "digest" or not steps.last.agreed, seed
            settled += bool(steps.last.agreed)
    assert doubted > 60 and settled == doubted


@pytest.mark.parametrize("secret", range(6))
def test_of_two_replicas_each_a_lie_in_the_half_that_is_left_is_not_believed(secret: int) -> None:
    """Who lies sees from the tables whether it is looked for: then it tells the truth."""
    one, two, three, four = (Actor(name, 1) for name in ("one", "two", "three", "four"))
    everybody = [[one, two], [three, four]]

    class Everybody(Members):
        def of_stage(self, stage: int) -> list[Member]:
            return [member for member in self if member.actor in everybody[stage]]

    members = Everybody()
    for actor in (one, two, three, four):
        members.add(actor, 0.0)

    settings = dataclasses.replace(
        small_settings(stages=2, microbatches=4, steps=9, replicas=2), audit_every=1, audit_secret=b"%d" % secret
    )
    watch = Audits(settings, members)
    for _ in range(200):
        rosters = watch.rosters(0, [list(roster) for roster in everybody], dict.fromkeys((one, two, three, four), 1.0))
        wired = tuple(StageTable(0, tuple(r), tuple(m % len(r) for m in range(4))) for r in rosters)
        tables = watch.tables(wired)
        busy = {table.roster[place] for table in tables for place in table.assignment}
        looked_for = [len(table.roster) for table in tables].count(1) == 1
        came_to = "lie" if one in busy and not looked_for else "digest"
        pass_state: Any = SimpleNamespace(
            pass_id=SimpleNamespace(step=0),
            tables=list(tables),
            weights=dict.fromkeys((one, two, three, four), 1.0),
            served={actor for table in tables for actor in table.roster},
            preparation=SimpleNamespace(
                answers=lambda without, came_to=came_to: (Answer(came_to, 1.0),) * 2,
                own_sums=lambda without: ((), ()),
            ),
        )
        decision: Any = SimpleNamespace(step=0, gradient_norm=1.0, skip=False)
        ruling = watch.judge(pass_state, decision, frozenset())
        if not ruling.again:
            break
    assert not ruling.again and (came_to == "digest" or not ruling.agreed)


def test_who_is_alone_in_a_half_says_nothing_false_of_the_right_bytes() -> None:
    right = Answer("digest", 4.0)
    assert right.is_like(Answer("digest", 4.0), 0.01)
    assert not right.is_like(Answer("digest", 1e40), 0.01), "the step would be scaled down to nothing"
    assert not right.is_like(Answer("digest", math.inf), 0.01), "the step would be skipped"
    assert Answer("digest", math.inf).is_like(Answer("other", math.inf), 0.0)
    told = Answer("digest", 4.0, loss_sum=100.0)
    assert not told.is_like(Answer("digest", 4.0, loss_sum=100.5), 0.01), "the same bytes contain one loss"


class Stage:
    """Attempts at steps of one stage with three replicas, of which those have a part that are there."""

    def __init__(self) -> None:
        self.members = Members()
        for actor in (ONE, TWO, LATE):
            member = self.members.add(actor, 0.0)
            member.place(StageIndex(0), 0.0)
            member.version, member.has_worked = 0, True
        self.audits = Audits(dataclasses.replace(SETTINGS, audit_every=1), self.members)

    def attempt(self, there: list[Actor], liar: Actor | None = None) -> tuple[StageTable, Ruling]:
        """`liar`: makes the result wrong if it has work."""
        (roster,) = self.audits.rosters(0, [list(there)], WEIGHTS)
        wired = StageTable(0, tuple(roster), tuple(m % len(roster) for m in range(4)))
        (table,) = self.audits.tables((wired,))
        busy = {table.roster[place] for place in table.assignment}
        pass_state: Any = SimpleNamespace(
            pass_id=SimpleNamespace(step=0),
            tables=[table],
            weights=WEIGHTS,
            served=set(table.roster),
            preparation=SimpleNamespace(
                answers=lambda without: (Answer("lie" if liar in busy else "digest", 1.0),),
                own_sums=lambda without: ((),),
            ),
        )
        decision: Any = SimpleNamespace(step=0, gradient_norm=1.0, skip=False)
        return table, self.audits.judge(pass_state, decision, frozenset())


def test_who_was_alone_in_its_stage_at_first_is_left_out_when_others_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before was decided without the others: they fetched its sums when this one opened."""
    monkeypatch.setattr(audits, "exchange", lambda *_: ())  # as where it would take too long
    for back in (TWO, LATE):
        stage = Stage()
        _, ruling = stage.attempt([ONE])
        assert "audited" in ruling.again
        table, ruling = stage.attempt([ONE, back])
        assert table.roster == (back,), "who did all of it is checked, and nobody else"
        for _ in range(4):
            if ruling.again:
                _, ruling = stage.attempt([ONE, back])
        assert not ruling.again and ruling.agreed


def test_nobody_is_looked_for_while_replicas_of_the_stage_are_away() -> None:
    """Of two that differ, one would be believed although a third can tell who is right."""
    stage = Stage()
    stage.attempt([ONE, TWO], ONE)
    _, ruling = stage.attempt([ONE, TWO], ONE)
    expelled: list[str] = []
    for _ in range(60):
        if not ruling.again:
            break
        _, ruling = stage.attempt([ONE, TWO, LATE], ONE)
        expelled += [each.actor.peer for each in ruling.expelled]
        if ruling.expelled:
            stage.members.remove(ONE)
            break
    assert expelled == ["one"]


def test_it_waits_for_those_that_are_away_for_a_few_attempts_only() -> None:
    stage = Stage()
    accused: list[str] = []
    for _ in range(60):
        _, ruling = stage.attempt([ONE, TWO], TWO)
        accused += [each.actor.peer for each in ruling.expelled]
        if accused:
            break
    assert accused == ["two"], "the one that came first is believed"
