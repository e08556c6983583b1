"""A member of a group that is told something by the organiser: it tells whoever leads, until there is an answer."""

from __future__ import annotations

from dataclasses import replace

from swarm.events import ControlGiven, ControlRefused
from swarm.protocol import messages as m
from swarm.protocol.coordinator.io import AnswerControl, ControlRequested
from swarm.protocol.ids import Actor, Term
from swarm.protocol.raft.forwarded_controls import MOST
from swarm.protocol.raft.io import GroupAction
from swarm.protocol.raft.log import Standing, Stored
from tests.protocol.test_group_member import SETTINGS, THREE, TWO, Desk, emitted, sent

RATE = ControlRequested("mine", "rate", "0.5", "Ann", "because")
STEER = m.Steer("mine", "rate", "0.5", "Ann", "because")


def answers(orders: list[GroupAction]) -> list[AnswerControl]:
    return [order for order in orders if isinstance(order, AnswerControl)]


def follow(desk: Desk, leader: Actor = TWO, ballot: int = 1) -> list[GroupAction]:
    return desk.hear(leader, m.Append(ballot, 0, 0, (), 0))


def test_a_leader_answers_when_a_majority_has_the_command() -> None:
    desk = Desk()
    desk.lead()
    orders = desk.tell(RATE)
    assert not answers(orders) and not emitted(orders, ControlGiven) and desk.member.standing.controls.count == 0
    entry = desk.writes[-1].entries[-1]
    assert entry == m.CommandEntry(1, m.Command(1, "rate", "0.5", "Ann", "because", "mine"))
    orders = desk.agree()
    assert emitted(orders, ControlGiven) == [ControlGiven(1, "rate", "0.5", "Ann", "because")]
    assert answers(orders)[0].number == 1 and desk.member.standing.controls.rate == 0.5


def test_a_follower_tells_the_leader_again_and_again_and_then_the_next_one() -> None:
    desk = Desk()
    assert not sent(desk.tell(RATE), m.Steer), "nobody leads"
    desk.now += SETTINGS.heartbeat_s
    assert sent(follow(desk), m.Steer, TWO) == [STEER]
    assert not sent(follow(desk), m.Steer), "not with everything it hears"
    desk.now += SETTINGS.heartbeat_s
    assert sent(follow(desk), m.Steer, TWO) == [STEER]
    desk.now += SETTINGS.heartbeat_s
    assert sent(follow(desk, THREE, 2), m.Steer, THREE) == [STEER]
    assert not answers(desk.hear(TWO, m.Steered("mine", 1, "done", ""))), "it leads no more"
    assert answers(desk.hear(THREE, m.Steered("mine", 1, "done", ""))) == [AnswerControl("mine", 1, "done", "")]
    desk.now += SETTINGS.heartbeat_s
    assert not sent(follow(desk, THREE, 2), m.Steer)


def test_what_comes_from_outside_of_the_group_is_not_heard() -> None:
    desk = Desk()
    desk.lead()
    stranger = Actor("stranger", 1)
    assert not desk.hear(stranger, STEER) and not desk.member.core.known  # type: ignore[union-attr]
    assert not any(isinstance(e, m.CommandEntry) for write in desk.writes for e in write.entries)


def test_a_leader_answers_who_has_passed_it_on_once_for_each_time() -> None:
    desk = Desk()
    desk.lead()
    assert not sent(desk.hear(TWO, STEER), m.Steered)
    assert not sent(desk.hear(TWO, STEER), m.Steered), "it is on its way"
    assert [e for w in desk.writes for e in w.entries if isinstance(e, m.CommandEntry)][1:] == []
    (told,) = sent(desk.agree(), m.Steered, TWO)
    assert isinstance(told, m.Steered) and (told.request, told.number, told.error) == ("mine", 1, "")
    (told,) = sent(desk.hear(TWO, STEER), m.Steered, TWO)
    assert isinstance(told, m.Steered) and told.number == 1, "the answer was lost"
    bad = replace(STEER, request="bad", value="much")
    (told,) = sent(desk.hear(TWO, bad), m.Steered, TWO)
    assert isinstance(told, m.Steered) and "'much' is not a rate" in told.error and told.number == 0


def test_a_command_that_the_leader_before_did_not_live_to_answer_is_one_command() -> None:
    """It is in the log of the next one, which asks the organiser's question once more."""
    command = m.Command(1, "rate", "0.5", "Ann", "because", "mine")
    desk = Desk(Stored(1, "", 1, Standing(1), ((1, 1),), (m.CommandEntry(1, command),)))
    desk.tell(RATE)
    orders = desk.lead()
    assert emitted(orders, ControlGiven) == [ControlGiven(1, "rate", "0.5", "Ann", "because")]
    assert answers(orders) == [AnswerControl("mine", 1, "in force already")]
    assert desk.member.core is not None and desk.member.core.history.controls.rate == 0.5
    assert not [e for write in desk.writes for e in write.entries if isinstance(e, m.CommandEntry) and e.ballot > 1]


def test_nobody_leads_for_long_and_it_says_so() -> None:
    desk = Desk()
    desk.tell(RATE)
    desk.now += SETTINGS.step_budget_s
    (answer,) = answers(follow(desk))
    assert "no leading coordinator has answered (2 of 3 coordinators can be reached)" in answer.error


def test_a_request_for_which_there_is_no_room_is_answered_at_once() -> None:
    desk = Desk()
    for number in range(MOST):
        assert not answers(desk.tell(replace(RATE, request=f"r{number}")))
    (answer,) = answers(desk.tell(RATE))
    assert answer.request == "mine" and answer.unsure
    assert answer.error == "64 other requests wait for a leading coordinator: try again later"
    assert not answers(desk.tell(replace(RATE, request="r0"))), "it waits already"


def test_words_are_checked_before_they_are_told_to_others() -> None:
    desk = Desk()
    follow(desk)
    orders = desk.tell(replace(RATE, why="\ud800"))
    assert "`why` must be one line" in answers(orders)[0].error
    assert emitted(orders, ControlRefused) and not sent(orders, m.Steer)


def test_a_rollback_takes_no_command_back() -> None:
    command = m.Command(1, "steps", "9", "Ann", "", "r")
    standing = Standing(1).after(m.CommandEntry(1, command)).after(m.TermEntry(2, Term(2), 0))
    assert standing.rolled_back_in == 2 and standing.controls.end(SETTINGS) == 9
