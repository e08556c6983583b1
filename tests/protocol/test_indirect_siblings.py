"""Siblings whose parts and sums come only through others: how long they are asked through others, and through whom."""

from __future__ import annotations

from swarm.protocol.ids import Actor, Attempt, PartKey, PassId, StageIndex, StepNumber, SumKey, Term
from swarm.protocol.peer.indirect_siblings import MOST_DIRECT, REMEMBERED, IndirectSiblings

SIBLING, VIA, OTHER, COORDINATOR = (Actor(name, 1) for name in ("sibling", "via", "other", "coordinator"))
ATTEMPT = Attempt(PassId(Term(1), StepNumber(0)), StageIndex(0), 0)
PART, SUM = PartKey(ATTEMPT, 0, SIBLING), SumKey(ATTEMPT, 1)


def test_a_sibling_that_answered_through_another_actor_is_indirect_until_all_comes_directly() -> None:
    known = IndirectSiblings()
    assert known.came_around(SIBLING, PART, VIA) and not known.came_around(SIBLING, SUM, VIA)
    known.came_directly(SIBLING, PART)
    known.new_pass()
    assert SIBLING in known, "its sum did not come directly"
    known.new_pass()
    assert SIBLING in known, "a pass without a reduction says nothing"
    known.came_around(SIBLING, PART, VIA)
    known.came_directly(SIBLING, PART)
    known.new_pass()
    assert SIBLING not in known


def test_a_sibling_that_alternates_is_asked_directly_ever_more_seldom() -> None:
    known, direct = IndirectSiblings(), []
    for _ in range(9):
        assert known.came_around(SIBLING, PART, VIA)
        known.new_pass()
        passes = 0
        while SIBLING in known:
            known.came_directly(SIBLING, PART)
            known.new_pass()
            passes += 1
        direct.append(passes)
    assert direct == [1, 2, 4, 8, 16, 32, MOST_DIRECT, MOST_DIRECT, MOST_DIRECT]


def test_every_way_is_tried_and_the_last_that_worked_comes_first() -> None:
    known = IndirectSiblings()
    ways = (OTHER, VIA, COORDINATOR)
    assert [known.way(SIBLING, ways, tries) for tries in range(4)] == [*ways, OTHER]
    known.came_around(SIBLING, PART, VIA)
    assert [known.way(SIBLING, ways, tries) for tries in range(4)] == [VIA, OTHER, COORDINATOR, VIA]
    assert known.way(SIBLING, (OTHER,), 0) is OTHER, "the one that forwarded last is gone"
    assert known.way(SIBLING, (), 0) is None


def test_the_newest_are_remembered_also_while_they_have_no_part() -> None:
    known = IndirectSiblings()
    many = [Actor(f"peer{number}", 1) for number in range(REMEMBERED + 1)]
    for actor in many:
        known.came_around(actor, SUM, VIA)
    known.new_pass()
    assert many[0] not in known and all(actor in known for actor in many[1:])
