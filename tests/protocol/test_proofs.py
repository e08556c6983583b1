"""A newcomer shows that it holds what its siblings hold, before it gets work; and how a peer answers."""

from __future__ import annotations

import pytest

from swarm.events import StateCompared
from swarm.protocol import messages as m
from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.coordinator.proofs import MOST_BEHIND, MOST_SIBLING_BEHIND, Proofs, proven
from swarm.protocol.ids import Actor, StageIndex, Term
from swarm.protocol.io import Emit, Send
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import ShowState, StateLoaded, StateShown
from swarm.protocol.peer.state_proofs import StateProofs
from swarm.simulation.runs.plan import small_settings

ME, NEW = Actor("coordinator", 0), Actor("new", 1)
SIBLINGS = ONE, TWO, THREE = Actor("one", 1), Actor("two", 1), Actor("three", 1)
STAGE = StageIndex(0)
RIGHT, WRONG = 17, 18


class Stage:
    """Siblings that are known to hold version 5, and a newcomer that loads it. A message is answered as `says` says."""

    def __init__(self, siblings: int = 3) -> None:
        self.settings = small_settings(stages=1, microbatches=2, steps=9, replicas=2)
        self.members, self.out = Members(), Outbox(ME)
        self.probation = Probation(self.members.people)
        self.history = History(Term(1), None, None, version=5)
        self.proofs = Proofs(self.settings, self.history, self.members, self.probation, self.out)
        self.now, self.sequence = 0.0, 0
        for actor in SIBLINGS[:siblings]:
            self.member(actor, 5).shown = True
        self.newcomer = self.member(NEW, None, loading=5)
        self.said: list[tuple[Actor, m.Message]] = []
        self.events: list[StateCompared] = []

    def member(self, actor: Actor, version: int | None, loading: int | None = None) -> Member:
        member = self.members.get(actor)
        if member is None:
            self.now += 1.0
            member = self.members.add(actor, self.now)
            member.place(STAGE, self.now)
        self.sequence += 1
        member.report(m.Status(actor, STAGE, version, sequence=self.sequence, loading=loading, state_term=1), 1)
        return member

    def look(self) -> dict[Actor, m.Prove]:
        """Who is asked what."""
        self.now += self.settings.heartbeat_s
        self.proofs.look(self.newcomer, self.now)
        return self.asked()

    def asked(self) -> dict[Actor, m.Prove]:
        orders = self.out.take()
        self.said += [(o.to, o.message) for o in orders if isinstance(o, Send)]
        self.events += [o.event for o in orders if isinstance(o, Emit) and isinstance(o.event, StateCompared)]
        return {o.to: o.message for o in orders if isinstance(o, Send) and isinstance(o.message, m.Prove)}

    def answer(self, asked: dict[Actor, m.Prove], **says: int | None) -> dict[Actor, m.Prove]:
        """Each that `says` names answers what it says. Returns who is asked next."""
        for actor, prove in asked.items():
            if actor.peer in says:
                self.proofs.hear(actor, m.Proof(prove.nonce, says[actor.peer]), self.now)
        return self.asked()

    def disproved(self) -> bool:
        """Whether the newcomer is told to load its state anew."""
        return any(to == NEW and isinstance(message, m.Disproved) for to, message in self.said)

    def wait(self, seconds: float) -> dict[Actor, m.Prove]:
        """Ticks and reports of the newcomer meanwhile. Returns the last questions."""
        asked: dict[Actor, m.Prove] = {}
        until = self.now + seconds
        while self.now < until:
            self.proofs.tick(self.now)
            asked |= self.asked() | self.look()
        return asked


def test_one_sibling_is_asked_and_who_says_the_same_may_work() -> None:
    stage = Stage()
    asked = stage.look()
    assert set(asked) == {NEW, ONE} and {(p.version, p.stage) for p in asked.values()} == {(5, STAGE)}
    assert len({p.nonce for p in asked.values()}) == 1
    assert proven(stage.members.of_stage(0)) == [stage.members.get(actor) for actor in (ONE, THREE, TWO)]
    assert not stage.answer(asked, one=RIGHT) and not stage.newcomer.shown, "its own answer is not there"
    stage.member(NEW, 5)
    stage.answer(asked, new=RIGHT)
    assert stage.newcomer.shown and stage.newcomer in proven(stage.members.of_stage(0))
    assert not stage.look() and [event.equal for event in stage.events] == [True]


def test_a_key_is_used_once_and_an_answer_to_another_one_counts_for_nothing() -> None:
    stage = Stage()
    first = stage.look()
    again = stage.answer(first, one=None) or stage.look()
    assert again[NEW].nonce != first[NEW].nonce
    stage.proofs.hear(NEW, m.Proof(first[NEW].nonce, RIGHT), stage.now)
    stage.proofs.hear(TWO, m.Proof(again[NEW].nonce, WRONG), stage.now)
    stage.answer(again, one=RIGHT)
    assert not stage.newcomer.shown, "neither the old answer counts, nor that of somebody who was not asked"


def test_all_siblings_are_asked_with_another_key_when_two_answers_differ() -> None:
    stage = Stage()
    stage.member(NEW, 5)
    first = stage.look()
    second = stage.answer(first, new=RIGHT, one=WRONG)
    assert set(second) == {NEW, *SIBLINGS} and second[NEW].nonce != first[NEW].nonce
    assert not stage.disproved(), "one sibling's word is not enough where there are others"
    stage.answer(second, new=RIGHT, one=WRONG, two=RIGHT, three=RIGHT)
    assert stage.newcomer.shown and "one.1 differ" in stage.events[-1].reason
    assert not stage.probation.strikes("one"), "its next step shows what it holds"


def test_who_is_not_believed_loads_anew_and_the_second_time_goes_on_probation_too() -> None:
    stage = Stage(siblings=1)
    for times in (1, 2):
        stage.member(NEW, 5)
        stage.answer(stage.look(), new=WRONG, one=RIGHT)
        assert stage.disproved() and not stage.newcomer.shown and not stage.events[-1].equal
        assert stage.probation.strikes("new") == times - 1
        assert not stage.look(), "nothing is asked before it has loaded"
        stage.said.clear()
        stage.proofs.tick(stage.now)
        assert not stage.asked() and stage.disproved(), "it is told until it has heard"
        stage.said.clear()
        stage.member(NEW, None, loading=5)
        assert set(stage.look()) == {NEW, ONE}
        stage.proofs.lost(NEW)
    assert stage.newcomer.given_up, "its place is free"


def test_the_devices_of_one_person_have_one_vote() -> None:
    stage = Stage()
    passes = {"one": "b", "two": "b", "three": "a", "new": "c"}
    stage.members.people.learn(Device(serial, 9, peer) for peer, serial in passes.items())
    stage.member(NEW, 5)
    second = stage.answer(stage.look(), new=RIGHT, one=WRONG)
    stage.answer(second, new=RIGHT, one=WRONG, two=WRONG, three=RIGHT)
    assert stage.newcomer.shown, "two people of three say the same; one and two are in the stage for longest"


def test_a_sibling_of_another_person_is_asked_first() -> None:
    stage = Stage()
    passes = {"one": "a", "two": "b", "three": "c", "new": "a"}
    stage.members.people.learn(Device(serial, 9, peer) for peer, serial in passes.items())
    assert set(stage.look()) == {NEW, TWO}


def test_a_sibling_that_dies_or_does_not_answer_is_replaced_and_without_any_the_newcomer_is_let_in() -> None:
    stage = Stage(siblings=2)
    stage.member(NEW, 5)
    stage.answer(stage.look(), new=RIGHT)
    stage.members.remove(ONE)
    stage.proofs.lost(ONE)
    asked = stage.wait(1.0)
    assert TWO in asked and ONE not in asked, "the other one"
    stage.answer(asked, new=RIGHT)
    assert not stage.newcomer.shown
    stage.answer(stage.wait(2 * stage.settings.step_budget_s), new=RIGHT)
    assert stage.newcomer.shown and stage.events[-1].reason == "no sibling has answered"


def test_nobody_is_asked_where_nobody_is_known_to_hold_the_stage() -> None:
    stage = Stage(siblings=0)
    other = stage.member(ONE, 5)
    assert not stage.look() and not stage.newcomer.shown
    assert proven([stage.newcomer, other]) == [stage.newcomer, other], "the first step compares them"


def test_who_does_not_answer_gets_no_work_and_counts_as_wrong() -> None:
    stage = Stage()
    stage.answer(stage.look(), one=RIGHT)
    assert not stage.wait(2 * stage.settings.step_budget_s).get(ONE) and not stage.disproved(), "it still loads"
    stage.member(NEW, 5)
    stage.wait(stage.settings.step_budget_s / 2)
    assert not stage.disproved()
    stage.wait(stage.settings.step_budget_s)
    assert stage.disproved() and not stage.newcomer.shown


def test_a_version_that_is_gone_is_followed_by_a_later_one_but_not_for_ever() -> None:
    stage = Stage()
    stage.member(NEW, 5)
    versions = []
    for _ in range(MOST_BEHIND):
        asked = stage.look()
        versions.append(asked[NEW].version)
        stage.answer(asked, new=None)
    assert versions[:6] == [5, 6, 7, 8, 8, 8] and not stage.disproved()
    assert not stage.answer(stage.look(), new=None) and stage.disproved()
    assert not stage.look()
    nonce = next(message.nonce for to, message in stage.said if isinstance(message, m.Disproved))
    stage.proofs.hear(NEW, m.Proof(nonce), stage.now)
    assert stage.look()[NEW].version == 5, "what was disproved is gone: it is asked as at first"


def test_a_sibling_that_always_says_that_the_version_is_gone_keeps_nobody_out() -> None:
    """It is in the stage for longest, so it is asked first."""
    stage = Stage()
    stage.member(NEW, 5)
    for _ in range(MOST_SIBLING_BEHIND):
        assert stage.answer(stage.look(), one=None) == {} and not stage.disproved()
    asked = stage.look()
    assert set(asked) == {NEW, TWO}
    stage.answer(asked, new=RIGHT, two=RIGHT)
    assert stage.newcomer.shown and not stage.probation.strikes("new")


def test_where_all_siblings_say_that_every_version_is_gone_the_first_step_compares_the_newcomer() -> None:
    stage = Stage(siblings=1)
    stage.member(NEW, 5)
    for _ in range(MOST_SIBLING_BEHIND):
        stage.answer(stage.look(), one=None)
    assert not stage.look() and stage.newcomer.shown and not stage.disproved()


@pytest.mark.parametrize("shown", [False, True])
def test_a_state_that_is_lost_or_moved_must_be_shown_again(shown: bool) -> None:
    stage = Stage()
    stage.newcomer.shown = shown
    stage.member(NEW, 5)
    assert stage.newcomer.shown is shown
    stage.member(NEW, None)
    assert not stage.newcomer.shown
    stage.newcomer.shown = True
    stage.newcomer.drifted(Term(2))
    assert not stage.newcomer.shown
    stage.newcomer.shown = True
    stage.newcomer.move(STAGE, 5, 1, stage.now)
    assert not stage.newcomer.shown


# ------------------------------------------------------------ the peer


class Peer:
    def __init__(self) -> None:
        self.held, self.out = HeldStage(), Outbox(NEW)
        self.proofs = StateProofs(self.held, self.out)
        self.held.assigned(m.Assign(Term(1), STAGE, 4))

    def ask(self, version: int, nonce: int = 7, *, stage: int = 0, applying: bool = False) -> list[object]:
        self.proofs.asked(m.Prove(Term(1), StageIndex(stage), version, nonce), ME, applying)
        return self.take()

    def loaded(self) -> list[object]:
        assert self.held.loaded(StateLoaded(STAGE, 4, 1))
        self.proofs.reached(ME)
        return self.take()

    def take(self) -> list[object]:
        return [action.message if isinstance(action, Send) else action for action in self.out.take()]


def test_a_peer_answers_when_it_holds_the_version_and_says_so_when_it_is_past() -> None:
    peer = Peer()
    assert peer.ask(3) == [m.Proof(7)], "it loads a later one"
    assert peer.ask(4) == [] and peer.ask(5, 8) == [], "it is to come"
    assert peer.loaded() == [ShowState(4, 7)]
    peer.proofs.shown(StateShown(4, 7, RIGHT), ME)
    assert peer.take() == [m.Proof(7, RIGHT)] and peer.ask(4) == [m.Proof(7, RIGHT)], "repeated, without work"
    assert peer.ask(4, 9, applying=True) == [m.Proof(9)] and peer.ask(4, 9, stage=1) == [m.Proof(9)]
    peer.held.applied(4)
    peer.proofs.reached(ME)
    assert peer.take() == [ShowState(5, 8)]
    assert peer.ask(4, 10) == [m.Proof(10)]


def test_a_peer_gives_up_the_state_that_was_disproved_and_no_later_one() -> None:
    peer = Peer()
    peer.loaded()
    peer.ask(4)
    peer.proofs.shown(StateShown(4, 7, WRONG), ME)
    peer.take()
    assert peer.proofs.is_wrong(7, ME) and not peer.take()
    peer.proofs.clear()
    assert not peer.proofs.is_wrong(7, ME) and peer.take() == [m.Proof(7)], "it holds another one by now"


def test_requests_of_a_flood_are_forgotten() -> None:
    peer = Peer()
    for nonce in range(1000):
        assert peer.ask(4, nonce) == []
    assert 0 < len(peer.loaded()) < 100
