"""Where a run stands after what is durable: decisions, checkpoints, rollbacks."""

from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.ids import Term


def run_at(version: int, archived: int | None, term: int = 1) -> History:
    return History(Term(term), None, archived, version=version)


def test_a_checkpoint_of_a_history_that_was_left_does_not_count() -> None:
    history = run_at(22, 10)
    history.term = Term(2)
    history.rolled_back(10)
    history.stored(20, Term(1))  # its fetch took so long
    assert history.archived == 10 and history.restorable
    history.version = 25
    history.stored(20, Term(1))  # even later, when the same number is long reached again
    assert history.archived == 10 and history.rollback_target == 10
    history.stored(20, Term(2))
    assert history.archived == 20


def test_a_rollback_leaves_what_was_archived_meanwhile() -> None:
    history = run_at(22, 10)
    history.stored(20, Term(1))  # between the order to go back to 10 and its being durable
    history.term = Term(2)
    history.rolled_back(10)
    assert history.archived == 10 and history.restorable


def test_nothing_is_stored_beyond_what_is_decided() -> None:
    history = run_at(12, None)
    history.stored(20, Term(1))
    assert history.archived is None
