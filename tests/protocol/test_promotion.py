"""Who catches up in the midst of a step has a part in what is left of it, if there is enough left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_stage import ONE, STAGE, THREE, TWO, Run, sent, settings

from swarm.events import StageAmended
from swarm.protocol import messages as m
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.io import Emit, Send


class Entrance(Run):
    """Two train; a third joins, and says when it has caught up."""

    def __init__(self, microbatches: int = 16) -> None:
        super().__init__(replace(settings(steps=4), microbatches=microbatches, max_replicas=8))
        self.load(ONE, TWO)
        self.hear(THREE, m.Join(THREE))

    @property
    def pass_state(self) -> PassState:
        assert self.core.open_pass is not None
        return self.core.open_pass.pass_state

    @property
    def table(self) -> m.StageTable:
        return self.pass_state.tables[0]

    def caught_up(self, actor: Actor = THREE) -> list[object]:
        self.sequence += 1
        return self.hear(actor, m.Status(actor, STAGE, 0, heard=self.pass_id, state_term=1, sequence=self.sequence))

    def done(self, actor: Actor, *microbatches: int) -> None:
        self.sequence += 1
        bits = sum(1 << which for which in microbatches)
        numbers = (self.table.number,)
        self.hear(actor, m.Status(actor, STAGE, 0, self.pass_id, numbers, bits, sequence=self.sequence, state_term=1))


def asked_of(orders: list[object]) -> tuple[Actor, m.Release]:
    """The only Release among these, and to whom it is sent."""
    ((giver, asked),) = [(o.to, o.message) for o in orders if isinstance(getattr(o, "message", None), m.Release)]
    return giver, asked


def released(run: Entrance, orders: list[object]) -> list[object]:
    """What is done when all is given up that is asked for here."""
    giver, asked = asked_of(orders)
    return run.hear(giver, m.Released(run.pass_id, asked.number, asked.microbatches))


def test_it_is_given_what_a_sibling_has_not_begun() -> None:
    run = Entrance()
    assert [each.actor for each in run.pass_state.listeners] == [THREE]
    asked = run.caught_up()
    assert run.table.roster == (ONE, TWO) and not sent(run.caught_up(), m.Release), "once"
    giver, release = asked_of(asked)
    assert set(release.microbatches) < run.table.assigned_to(giver)
    orders = released(run, asked)
    assert run.table.roster == (ONE, TWO, THREE) and run.table.assigned_to(THREE) == set(release.microbatches)
    opened = sent(orders, m.Open, THREE)[-1]
    assert isinstance(opened, m.Open) and opened.tables[0] == run.table and not opened.listeners
    assert {order.to for order in orders if isinstance(getattr(order, "message", None), m.Amend)} == {ONE, TWO, THREE}
    events = [order.event for order in orders if isinstance(order, Emit)]
    assert [e.entrant for e in events if isinstance(e, StageAmended)] == [str(THREE)]


def test_it_comes_into_a_pass_once() -> None:
    run = Entrance()
    released(run, run.caught_up())
    assert run.core.open_pass is not None
    run.core.open_pass.exclude(THREE, "it is gone", run.now)
    run.now += 2.0
    assert run.table.roster == (ONE, TWO) and not sent(run.caught_up(), m.Release)


def test_nobody_comes_in_where_a_sibling_is_done_or_little_is_left() -> None:
    done = Entrance()
    done.done(ONE, *done.table.assigned_to(ONE))
    assert not sent(done.caught_up(), m.Release)
    assert not sent(Entrance(microbatches=4).caught_up(), m.Release)


def test_nobody_comes_in_without_the_version() -> None:
    run = Entrance()
    run.sequence += 1
    status = m.Status(THREE, STAGE, None, heard=run.pass_id, loading=0, state_term=1, sequence=run.sequence)
    assert not sent(run.hear(THREE, status), m.Release)


def test_what_is_forwarded_stays_where_it_is() -> None:
    run = Entrance()
    for actor in (ONE, TWO):
        run.sequence += 1
        bits = sum(1 << which for which in run.table.assigned_to(actor))
        run.hear(actor, m.Status(actor, STAGE, 0, run.pass_id, (0,), sequence=run.sequence, forwarded=bits))
    assert not sent(run.caught_up(), m.Release)


def test_who_is_gone_when_the_answer_comes_gets_nothing() -> None:
    run = Entrance()
    asked = run.caught_up()
    run.hear(THREE, m.Leave(THREE, "its owner wants it back"))
    released(run, asked)
    assert run.table.roster == (ONE, TWO) and run.table.number == 1, "what was given up is a sibling's"


def test_if_all_is_begun_it_stays_out() -> None:
    run = Entrance()
    asked = run.caught_up()
    giver, release = asked_of(asked)
    run.hear(giver, m.Released(run.pass_id, release.number, ()))
    assert run.table.roster == (ONE, TWO) and run.table.number == 0


def keys(orders: list[object]) -> dict[Actor, int]:
    """Who is asked to show its state, and with which key."""
    return {
        o.to: o.message.nonce
        for o in orders
        if isinstance(o, Send) and isinstance(o.message, m.Prove) and o.message.version <= 1
    }


def test_who_has_to_show_its_state_gets_nothing_before_it_has() -> None:
    run = Entrance()
    for member in run.core.members:
        member.shown = member.actor is not THREE
    orders = run.caught_up()
    assert not sent(orders, m.Release)
    (one, key), (three, same) = sorted(keys(orders).items())
    assert (one, three, key) == (ONE, THREE, same)
    assert not sent(run.hear(ONE, m.Proof(key, 7)), m.Release)
    assert asked_of(run.hear(THREE, m.Proof(key, 7)))[0] in (ONE, TWO), "as soon as it has"


@pytest.mark.parametrize("shows", [False, True])
def test_who_lacks_one_decision_is_in_the_next_roster_only_if_it_has_shown_its_state(shows: bool) -> None:
    run = Entrance(microbatches=2)
    run.loading[THREE], run.versions[THREE] = 0, None
    run.report(THREE)
    run.decide(ONE, TWO)
    orders = run.report(THREE)
    asked = keys(orders) or keys(run.heartbeats(0.3))
    assert set(asked) == {THREE, ONE}
    del run.loading[THREE]
    run.sequence += 1
    run.hear(THREE, m.Status(THREE, STAGE, 1, heard=run.pass_id, state_term=1, sequence=run.sequence))
    for actor in (ONE, THREE) if shows else (ONE,):
        run.hear(actor, m.Proof(asked[actor], 7))
    run.decide(ONE, TWO)
    assert set(run.table.roster) == ({ONE, TWO, THREE} if shows else {ONE, TWO})
