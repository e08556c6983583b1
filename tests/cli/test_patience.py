"""How long a peer waits for its coordinator, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

from peers.stage.patience import Patience
from swarm.events import CoordinatorAway, CoordinatorBack, Event

STEP_S = 0.25
WHY = "connection refused"


def looks(patience: Patience, away_s: float, start: float = 0.0) -> Iterator[tuple[float, Event]]:
    """What is told, and after how many seconds, while the coordinator is away for so long."""
    for k in range(int(away_s / STEP_S) + 1):
        told = patience.look(WHY, start + k * STEP_S)
        if told is not None:
            yield k * STEP_S, told


def test_waiting_is_told_after_a_second_at_each_quarter_and_at_the_end() -> None:
    patience = Patience(600.0)
    told = list(looks(patience, 599.5))
    assert [at for at, _ in told] == [1.0, 150.0, 300.0, 450.0]
    assert told[0][1] == CoordinatorAway(1.0, 599.0, WHY)
    assert not patience.exhausted
    assert patience.look(WHY, 600.0) == CoordinatorAway(600.0, 0.0, WHY)
    assert patience.exhausted
    assert "could not be reached for 10 minutes" in patience.last_words()
    assert "leaves in 599 s" in told[0][1].describe()
    last = CoordinatorAway(600.0, 0.0, WHY).describe()
    assert "leaves" in last and "keeps dialling" not in last


def test_a_coordinator_that_comes_back_is_waited_for_anew() -> None:
    patience = Patience(10.0)
    assert len(list(looks(patience, 9.0))) == 4
    assert patience.look(None, 9.25) == CoordinatorBack(9.0)
    assert patience.look(None, 100.0) is None
    list(looks(patience, 9.5, start=100.25))
    assert not patience.exhausted


def test_a_connection_that_is_back_within_a_second_is_no_news() -> None:
    patience = Patience(600.0)
    assert not list(looks(patience, 0.75))
    assert patience.look(None, 1.0) is None


def test_time_in_which_the_process_was_stopped_was_not_waited() -> None:
    patience = Patience(60.0)
    list(looks(patience, 2.0))
    patience.look(WHY, 5_000.0)
    assert not patience.exhausted
    list(looks(patience, 40.0, start=5_000.0))
    assert not patience.exhausted


def test_a_refusal_is_the_end_of_patience_and_is_said_in_its_own_words() -> None:
    patience = Patience(600.0)
    patience.look(WHY, 0.0)
    patience.refused("other protocol version: you speak 1, I speak 2")
    assert patience.exhausted
    assert patience.last_words() == "the coordinator refuses this peer: other protocol version: you speak 1, I speak 2"


def test_nobody_waits_for_the_coordinator_of_a_finished_run() -> None:
    finished = False
    patience = Patience(600.0, lambda: finished)
    assert list(looks(patience, 2.0))
    finished = True
    assert patience.look(None, 2.25) == CoordinatorBack(2.0)
    assert not patience.over, "the coordinator can be reached: it tells the end itself"
    assert patience.look(WHY, 2.5) is None
    assert patience.over and not patience.exhausted
    assert patience.last_words() == "the run is finished"
