"""Whose residuals count: told by tables, recorded by decisions, and held to by peers."""

import pytest

from swarm.protocol.coordinator.passes.assignment import amend
from swarm.protocol.ids import Actor, PassId, StepNumber, Term
from swarm.protocol.messages import Contribution, Decision, StageTable
from swarm.protocol.residuals import Carry, Rosters, carry_of

A, B, C = (Actor(name, 1) for name in ("a", "b", "c"))
TERM = Term(3)
NEXT = PassId(TERM, StepNumber(5))


def table(*roster: Actor, carried: tuple[int, ...] = ()) -> StageTable:
    return StageTable(0, roster, tuple(m % len(roster) for m in range(4)), carried)


def decision(step: int = 4, scale: float = 0.5, term: Term = TERM) -> Decision:
    return Decision(term, StepNumber(step), scale, 1.0, 64, 1.0, ())


def rosters(*roster: Actor, without: frozenset[Actor] = frozenset(), **of: object) -> Rosters:
    made = Rosters()
    made.decided(decision(**of), [table(*roster)], without)  # type: ignore[arg-type]
    return made


def test_a_member_carries_its_place_in_the_step_before() -> None:
    assert rosters(A, B).carried(NEXT, 0, (B, C, A)) == (1, -1, 0)
    assert Rosters().carried(NEXT, 0, (A,)) == (-1,)
    assert rosters(A, B).carried(NEXT, 0, (Actor("a", 2),)) == (-1,), "another incarnation"


@pytest.mark.parametrize("of", [{"step": 3}, {"term": Term(2)}, {"scale": 0.0}], ids=["a gap", "a new term", "a skip"])
def test_nothing_is_carried_over(of: dict[str, object]) -> None:
    assert rosters(A, B, **of).carried(NEXT, 0, (A, B)) == (-1, -1)


def test_who_had_died_when_all_others_were_prepared_carries_nothing() -> None:
    assert rosters(A, B, without=frozenset((A,))).carried(NEXT, 0, (A, B)) == (-1, 1), "but places stay"


def test_rosters_keep_their_order() -> None:
    assert rosters(B, A).in_order(NEXT, [[C, A, B]]) == [[B, A, C]]
    assert rosters(B, A, scale=0.0).in_order(NEXT, [[C, A, B]]) == [[C, A, B]]


def test_an_amendment_keeps_what_the_others_carry() -> None:
    before = table(A, B, C, carried=(2, -1, 0))
    after = amend(before, [A], sorted(before.assigned_to(A)), {A: 1.0, B: 1.0, C: 1.0})
    assert (after.roster, after.carried) == ((B, C), (-1, 0))
    assert amend(table(A, B), [], [], {A: 1.0, B: 1.0}).carried == ()


def test_contributions_say_who_has_added_what() -> None:
    assert table(A, B, carried=(1, -1)).contributions() == (Contribution(0b0101, 1), Contribution(0b1010, -1))
    assert table(A, B).contributions() == (), "exact sums do not depend on it"


def test_a_peer_holds_what_it_has_applied() -> None:
    held = Carry.of(B, table(A, B), decision())
    assert held == Carry(TERM, StepNumber(4), 1)
    assert Carry.of(C, table(A, B), decision()) is None
    assert Carry.of(B, table(A, B), decision(scale=0.0)) is None, "a skipped step leaves nothing"


def test_a_peer_uses_what_the_table_names_and_nothing_else() -> None:
    held = Carry(TERM, StepNumber(4), 1)
    assert carry_of(B, table(A, B, carried=(0, 1)), NEXT, held) is held
    assert carry_of(B, table(A, B, carried=(0, -1)), NEXT, held) is None
    assert carry_of(B, table(A, B), NEXT, held) is None
    assert carry_of(C, table(A, B, carried=(0, 1)), NEXT, held) is None, "it has no part in the stage"


@pytest.mark.parametrize(
    "held",
    [None, Carry(TERM, StepNumber(4), 0), Carry(TERM, StepNumber(3), 1), Carry(Term(2), StepNumber(4), 1)],
    ids=["nothing", "another place", "another step", "another term"],
)
def test_a_peer_that_lacks_what_the_table_names_says_so(held: Carry | None) -> None:
    with pytest.raises(LookupError, match="lacks the residuals of step 4, which the pass needs"):
        carry_of(B, table(A, B, carried=(0, 1)), NEXT, held)
