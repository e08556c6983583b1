"""What the peers of one stage say of themselves: whom it is believed of, and what follows where it is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from one_stage import ME, ONE, STAGE, THREE, TWO, Run, sent, settings

from swarm.events import RunDiverged, RunPaused, StageDoubted
from swarm.manifest import DivergenceSection
from swarm.protocol import messages as m
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.divergence import Divergence
from swarm.protocol.coordinator.io import CommandWritten, TermWritten, WriteRecord, WriteTerm
from swarm.protocol.coordinator.membership.doubts import REMEMBERED, Doubted, Doubts, is_confirmed
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.outcome import GiveUp
from swarm.protocol.ids import Actor, Attempt, PassId, StepNumber, Term
from swarm.protocol.io import Emit
from swarm.protocol.outbox import Outbox
from swarm.protocol.soundness import Soundness


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
    assert is_confirmed(stages, peers, of, People()) is expected


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
    assert "stage 0 has no trusted peer" in run.told(RunPaused)[-1].reason
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


@pytest.mark.parametrize(
    ("not_finite", "unusable", "skipped", "retreats", "expected"),
    [
        ([0, 1], [0, 1], 2, 1, None),
        ([0, 1], [], 1, 1, None),
        ([0, 1], [], 2, 0, None),
        ([0, 1], [], 2, 1, GiveUp),
        ([0, 1], [1], 2, 1, GiveUp),
        ([1], [], 2, 0, Doubted),
        ([1], [1], 2, 0, Doubted),
    ],
    ids=[
        "two stages say so of themselves",
        "it is not the last one",
        "it may go back by itself",
        "nobody knows who made it so",
        "one alone says so of itself",
        "the others are finite",
        "the others are finite, and it says so of itself",
    ],
)
def test_when_a_step_that_would_be_skipped_is_not(
    not_finite: list[int], unusable: list[int], skipped: int, retreats: int, expected: type | None
) -> None:
    of = replace(settings(steps=9), stages=2, divergence=DivergenceSection(skips=3, action="go_back", times=1))
    doubts = Doubts()
    history = History(Term(1), None, None, controls=Controls(retreats=retreats), soundness=Soundness(0, skipped))
    divergence = Divergence(of, history, Members(), doubts, cast(Any, None), Outbox(ME))
    for stage in not_finite:
        doubts.say(stage, (ONE, TWO))
    preparation = SimpleNamespace(not_finite=lambda without: not_finite, unusable=lambda without: unusable)
    found = SimpleNamespace(preparation=preparation, pass_id=PassId(Term(1), StepNumber(4)))
    objection = divergence.objection(cast(Any, found), frozenset())
    assert (None if objection is None else type(objection)) == expected
    if isinstance(objection, Doubted):
        assert (objection.stage, objection.who) == (1, (ONE, TWO))
