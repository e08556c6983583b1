"""Which orders move a peer to another stage, and which come too late to do so."""

import pytest

from swarm.protocol.ids import PassId, StageIndex, StepNumber, Term
from swarm.protocol.messages import Assign
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import StateLoaded

ONE, TWO = StageIndex(0), StageIndex(1)


def held_stage(term: int = 1, stage: StageIndex = ONE, version: int = 3) -> HeldStage:
    held = HeldStage()
    take_up(held, Assign(Term(term), stage, version))
    held.begun(PassId(Term(term), StepNumber(version)))
    return held


def take_up(held: HeldStage, order: Assign) -> bool:
    """Whether the order was news; then it is carried out."""
    load = held.assigned(order)
    if load is None:
        return False
    assert held.loaded(StateLoaded(load.stage, load.version, 1))
    return True


def test_within_a_term_only_a_higher_number_moves_a_peer() -> None:
    held = held_stage()
    assert not take_up(held, Assign(Term(1), TWO, 4)), "without a move a peer does not leave its stage"
    assert take_up(held, Assign(Term(1), TWO, 4, move=1))
    assert (held.stage, held.version) == (TWO, 4)
    assert not take_up(held, Assign(Term(1), ONE, 5)), "a late order from before the move"
    assert not take_up(held, Assign(Term(1), TWO, 4, move=1)), "a repeat"
    assert take_up(held, Assign(Term(1), TWO, 5, move=1)), "a newer version of the same stage"


def test_a_move_may_go_to_a_version_that_was_held_in_the_other_stage() -> None:
    held = held_stage(version=3)
    assert take_up(held, Assign(Term(1), TWO, 3, move=1))


def test_the_number_alone_loads_nothing_again() -> None:
    held = held_stage()
    assert not take_up(held, Assign(Term(1), ONE, 3, move=2))
    assert held.version == 3


@pytest.mark.parametrize("begun", [False, True])
def test_a_new_term_counts_moves_anew(begun: bool) -> None:
    held = held_stage()
    take_up(held, Assign(Term(1), TWO, 4, move=7))
    if begun:
        held.begun(PassId(Term(2), StepNumber(4)))
        assert take_up(held, Assign(Term(2), ONE, 5, move=1))
    else:
        assert take_up(held, Assign(Term(2), ONE, 5))
    assert held.stage == ONE
    assert not take_up(held, Assign(Term(1), TWO, 6, move=8)), "of an older term"
