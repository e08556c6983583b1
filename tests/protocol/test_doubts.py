"""What the peers of one stage say of themselves: whom it is believed of, and what follows where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_stage import ONE, STAGE, THREE, TWO, Run, sent, settings

from swarm.events import RunDiverged, RunPaused, StageDoubted
from swarm.manifest import DivergenceSection
from swarm.protocol import messages as m
from swarm.protocol.coordinator.io import CommandWritten, TermWritten, WriteRecord, WriteTerm
from swarm.protocol.coordinator.membership.doubts import REMEMBERED, Doubted, Doubts, is_confirmed
from swarm.protocol.ids import Actor, Attempt
from swarm.protocol.io import Emit


@pytest.mark.parametrize(
    ("stages", "peers", "of", "expected"),
    [
        ([0, 1], ["a", "b"], 2, True),
        ([1], ["a"], 2, False),
        ([1], ["a", "b", "c"], 2, False),
        ([0], ["a"], 1, False),
        ([0], ["a", "a"], 1, False),
        ([0], ["a", "b"], 1, True),
        ([], [], 1, False),
        ([], [], 3, False),
    ],
)
def test_it_counts_from_how_many_places_something_is_said(
    stages: list[int], peers: list[str], of: int, expected: bool
) -> None:
    assert is_confirmed(stages, peers, of) is expected


def test_who_is_doubted_reloads_once_and_is_left_out_then_under_whatever_incarnation() -> None:
    doubts = Doubts()
    assert doubts.doubt(Doubted(1, (ONE,), "why")) == [ONE] and not doubts.left_out
    again = Actor(ONE.peer, ONE.incarnation + 1)
    assert doubts.doubt(Doubted(1, (again, TWO), "again")) == [TWO]
    assert doubts.left_out == {ONE.peer: "again"}
    doubts.forgive()
    assert not doubts.left_out and doubts.doubt(Doubted(1, (ONE,), "why")) == [ONE]


def test_only_so_many_are_remembered() -> None:
    doubts = Doubts()
    for _ in range(2):
        for number in range(REMEMBERED + 3):
            doubts.doubt(Doubted(0, (Actor(str(number), 1),), "why"))
    assert len(doubts.left_out) <= REMEMBERED


class Lonely(Run):
    """A run whose only stage has one peer, of which each step is a divergence if it is skipped."""

    def __init__(self) -> None:
        of = replace(settings(steps=9, replicas=1), divergence=DivergenceSection(skips=1), checkpoint_every=1)
        super().__init__(of, (ONE,))
        self.load(ONE)

    def told(self, kind: type) -> list:
        return [order.event for order in self.orders if isinstance(order, Emit) and isinstance(order.event, kind)]

    def claims(self, **what: object) -> None:
        """Until it is doubted, the peer says so in every attempt."""
        before = len(self.told(StageDoubted))
        for _ in range(8):
            if len(self.told(StageDoubted)) > before:
                break
            if self.core.open_pass is not None:
                prepared = m.Prepared(Attempt(self.pass_id, STAGE, 0), "d", 1.0, 1.0, **what)  # type: ignore[arg-type]
                self.hear(ONE, prepared)
            self.term_written()

    def term_written(self) -> None:
        """Terms that are to be written are on disk, and the peer has taken up what is wanted under the newest."""
        for order in [order for order in self.orders if isinstance(order, WriteTerm)]:
            self.take(TermWritten(order.term))
        self.state_term = self.core.history.term
        self.heartbeats(2.0)


CLAIMS = [{"spoilt": True, "unusable": True}, {"finite": False}]


@pytest.mark.parametrize("what", CLAIMS)
def test_what_the_only_peer_says_of_itself_ends_no_run_and_the_organiser_can(what: dict[str, bool]) -> None:
    run = Lonely()
    run.claims(**what)
    run.claims(**what)
    assert [(e.reload, e.left_out) for e in run.told(StageDoubted)] == [([str(ONE)], []), ([], [str(ONE)])]
    assert not run.told(RunDiverged) and not sent(run.orders, m.Halt)
    assert not [order for order in run.orders if isinstance(order, WriteRecord)]
    run.term_written()
    assert "stage 0 has no peer that is believed" in run.told(RunPaused)[-1].reason
    run.orders.clear()
    run.take(CommandWritten(m.Command(1, "rate", "0.5", "me", "it has diverged", "r")))
    run.heartbeats(1.0)
    backs = [order.rollback_to for order in run.orders if isinstance(order, WriteTerm)]
    assert backs == [0], "it goes back, and all are believed again"
    run.term_written()
    assert run.core.open_pass is not None and not sent(run.orders, m.Halt)


def test_a_rate_that_is_commanded_in_a_sound_run_sends_nobody_back() -> None:
    run = Lonely()
    run.orders.clear()
    run.take(CommandWritten(m.Command(1, "rate", "0.5", "me", "", "r")))
    run.heartbeats(1.0)
    assert not [order for order in run.orders if isinstance(order, WriteTerm)]


def test_another_peer_takes_the_place_of_who_is_left_out() -> None:
    run = Lonely()
    run.claims(finite=False)
    run.claims(finite=False)
    run.term_written()
    run.hear(THREE, m.Join(THREE))
    run.versions[THREE] = 0
    run.heartbeats(1.0)
    assert run.core.open_pass is not None
    assert run.core.open_pass.pass_state.tables[0].roster == (THREE,)
