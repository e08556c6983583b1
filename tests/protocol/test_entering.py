"""Who catches up in the midst of a step has a part in what is left of it, if there is enough left."""

from __future__ import annotations

from dataclasses import replace

from one_stage import ONE, STAGE, THREE, TWO, Run, sent, settings

from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Microbatch


class Entrance(Run):
    """Two train; a third joins, and says when it has caught up."""

    def __init__(self, microbatches: int = 16) -> None:
        super().__init__(replace(settings(steps=4), microbatches=microbatches, max_replicas=8))
        self.load(ONE, TWO)
        self.hear(THREE, m.Join(THREE))

    @property
    def table(self) -> m.StageTable:
        assert self.core.open_pass is not None
        return self.core.open_pass.ledger.tables[0]

    def caught_up(self, actor: Actor = THREE) -> list[object]:
        self.sequence += 1
        return self.hear(actor, m.Status(actor, STAGE, 0, heard=self.pass_id, state_term=1, sequence=self.sequence))

    def done(self, actor: Actor, *microbatches: int) -> None:
        self.sequence += 1
        bits = sum(1 << which for which in microbatches)
        numbers = (self.table.number,)
        self.hear(actor, m.Status(actor, STAGE, 0, self.pass_id, numbers, bits, sequence=self.sequence, state_term=1))


def test_it_is_given_what_a_sibling_has_not_begun() -> None:
    run = Entrance()
    assert [each.actor for each in run.core.open_pass.ledger.listeners] == [THREE]
    orders = run.caught_up()
    assert run.table.roster == (ONE, TWO, THREE) and run.table.number == 1
    (opened,) = sent(orders, m.Open, THREE)
    assert opened.tables[0] == run.table and not opened.listeners
    ((giver, asked),) = [(o.to, o.message) for o in orders if isinstance(getattr(o, "message", None), m.Release)]
    assert set(asked.microbatches) < run.table.assigned_to(giver) and asked.number == 1
    orders = run.hear(giver, m.Released(run.pass_id, 1, asked.microbatches))
    assert run.table.assigned_to(THREE) == set(asked.microbatches)
    assert {order.to for order in orders if isinstance(getattr(order, "message", None), m.Amend)} == {ONE, TWO, THREE}


def test_it_comes_into_a_pass_once() -> None:
    run = Entrance()
    run.caught_up()
    run.core.open_pass.exclude(THREE, "it is gone")
    assert run.table.roster == (ONE, TWO)
    run.caught_up()
    assert run.table.roster == (ONE, TWO)


def test_nobody_comes_in_where_a_sibling_is_done_or_little_is_left() -> None:
    done = Entrance()
    done.done(ONE, *done.table.assigned_to(ONE))
    done.caught_up()
    little = Entrance(microbatches=4)
    little.caught_up()
    assert done.table.roster == little.table.roster == (ONE, TWO)


def test_nobody_comes_in_without_the_version() -> None:
    run = Entrance()
    run.sequence += 1
    run.hear(THREE, m.Status(THREE, STAGE, None, heard=run.pass_id, loading=0, state_term=1, sequence=run.sequence))
    assert run.table.roster == (ONE, TWO)


def test_if_all_is_begun_it_adds_nothing_and_takes_part_in_the_reduce() -> None:
    run = Entrance()
    run.caught_up()
    (giver,) = run.core.open_pass.ledger.releasing
    run.hear(giver, m.Released(run.pass_id, 1, ()))
    assert run.table.roster == (ONE, TWO, THREE) and not run.table.assigned_to(THREE)
    assert Microbatch(0) in run.table.assigned_to(ONE) | run.table.assigned_to(TWO)
