"""How many people some peers are. What many devices of one pass say is one vote."""

from __future__ import annotations

from fractions import Fraction

import pytest

from swarm.protocol.admissions import Device
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import CommandWritten, TermWritten
from swarm.protocol.coordinator.membership.accusations import Accusations, Failure
from swarm.protocol.coordinator.membership.doubts import is_confirmed
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.coordinator.passes.drift import drift_of
from swarm.protocol.donors import verdict
from swarm.protocol.ids import Actor, Microbatch, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Received, Tick
from swarm.protocol.messages import MAX_DONORS, Command, Donor, Join, Status
from swarm.simulation.runs.plan import small_settings

MANY = ("m1", "m2", "m3")
SETTINGS = small_settings(stages=1, microbatches=4, steps=2, replicas=4)


def device(peer: str, person: str) -> Device:
    return Device(f"{ord(person):032x}", 8, peer)


def members_of(**people: str) -> Members:
    """By person (one letter), their devices' names."""
    members = Members()
    members.people.learn(device(peer, person) for person, peers in people.items() for peer in peers.split())
    for peers in people.values():
        for peer in peers.split():
            members.add(Actor(peer, 1), 0.0)
    return members


def two_and_many() -> Members:
    return members_of(m="m1 m2 m3", a="alice", b="bob")


def test_devices_of_a_pass_share_a_vote_and_where_there_is_one_pass_each_has_one() -> None:
    people = two_and_many().people
    assert people.count(("alice", "bob", *MANY)) == 3 and people.count(MANY) == 1
    assert people.votes(("m1", "m2", "alice")) == {"m1": Fraction(1, 2), "m2": Fraction(1, 2), "alice": 1}
    alone = members_of(m="m1 m2 m3").people
    assert alone.count(MANY) == 3 and set(alone.votes(MANY).values()) == {1}
    assert People().count(("one", "two", "one")) == 2, "nothing is known of them"


def test_it_is_counted_anew_when_people_come_go_and_come_with_another_pass() -> None:
    members = two_and_many()
    for peer in ("alice", "bob"):
        members.remove(Actor(peer, 1))
    assert not members.people.are_several and members.people.count(MANY) == 3
    members.people.learn((*(device(peer, "m") for peer in MANY), device("m3", "c")))
    assert members.people.are_several and members.people.count(MANY) == 2
    members.remove(Actor("m3", 1))
    assert members.people.count(MANY[:2]) == 2


def test_states_of_most_people_are_believed_and_not_those_of_most_devices() -> None:
    members = two_and_many()
    states = {member.actor: "wrong" if member.actor.peer in MANY else "right" for member in members}
    found = drift_of(0, states, members)
    assert found is not None and {actor.peer for actor in found.reload} == set(MANY)
    assert found.reason == "2 of 5 replicas hold the same state, which are those of most of the 3 people"
    one_pass = members_of(m="m1 m2 m3 alice bob")
    found = drift_of(0, states, one_pass)
    assert found is not None and {actor.peer for actor in found.reload} == {"alice", "bob"}


def test_donors_are_of_as_many_people_as_possible_and_who_is_there_longest_comes_first() -> None:
    members = members_of(m=" ".join(f"m{number}" for number in range(9)), a="alice", b="bob")
    holders = [member.actor for member in members]
    for number, member in enumerate(members):
        member.placed_at = float(number)
    named = [(donor.actor.peer, donor.person) for donor in members.donors(reversed(holders))]
    assert named[:3] == [("m0", 0), ("alice", 1), ("bob", 2)] and named[3:] == [(f"m{n}", 0) for n in range(1, 6)]
    assert len(named) == MAX_DONORS
    alone = members_of(m="m1 m2 m3")
    assert [donor.person for donor in alone.donors(member.actor for member in alone)] == [0, 1, 2], "devices count"


def test_a_state_that_most_people_give_is_believed_and_not_that_of_most_devices() -> None:
    members = two_and_many()
    donors = members.donors(member.actor for member in members)
    told = {donor.actor: "wrong" if donor.actor.peer in MANY else "right" for donor in donors}
    found = verdict(told, donors)
    assert {actor.peer for actor in found.tellers} == {"alice", "bob"}
    assert (found.is_majority, found.is_tied, found.told_by) == (True, False, 3)
    del told[Actor("alice", 1)]
    found = verdict(told, donors)
    assert (found.is_majority, found.is_tied, found.told_by) == (False, True, 2), "alice may say either"
    alone = tuple(Donor(donor.actor, number) for number, donor in enumerate(donors))
    assert {actor.peer for actor in verdict(told, alone).tellers} == set(MANY), "three people say so"


def test_of_two_donors_that_differ_the_one_named_first_is_believed() -> None:
    one, two = Actor("one", 1), Actor("two", 1)
    for first, second in ((one, two), (two, one)):
        found = verdict({one: "a", two: "b"}, (Donor(first, 0), Donor(second, 1)))
        assert found.tellers == {first} and found.is_tied and not found.is_majority


def test_terms_that_one_persons_devices_report_do_not_outvote_two_people() -> None:
    for members, behind in ((two_and_many(), False), (members_of(m="m1 m2 m3 alice bob"), True)):
        for member in members:
            term = 9 if member.actor.peer in MANY else 1
            member.report(Status(member.actor, StageIndex(0), 0, term=term, sequence=1), 1)
        assert members.are_beyond(Term(1)) is behind


def test_devices_of_one_person_that_fall_silent_together_are_not_many() -> None:
    for members, lost in ((members_of(m="m1 m2 m3", a="alice"), 3), (members_of(m="m1 m2 m3 alice"), 0)):
        for member in members:
            member.heard_at = 1.9 if member.actor.peer == "alice" else 0.0
        found = FailureDetector(SETTINGS).judge(members, SETTINGS.step_budget_s / 3)
        assert len([1 for member, _ in found if member.actor.peer in MANY]) == lost


def test_failures_that_one_persons_devices_report_are_one_accusation() -> None:
    accusations = Accusations(two_and_many().people)
    for number, peer in enumerate(MANY):
        accusations.note(Failure(1, Microbatch(number), peer, frozenset({"bob"}), "out of memory"))
    assert accusations.against("bob") == 1
    assert accusations.settle(["bob", "alice"]) == list(MANY), "who reports falsely is to blame, all of them"
    accusations = Accusations(members_of(m="m1 m2 m3 alice bob").people)
    for number, peer in enumerate(MANY):
        accusations.note(Failure(1, Microbatch(number), peer, frozenset({"bob"}), "out of memory"))
    assert accusations.against("bob") == 3


def test_two_stages_of_one_person_confirm_nothing() -> None:
    people = two_and_many().people
    assert not is_confirmed([0, 1], MANY, 2, people) and is_confirmed([0, 1], ("m1", "bob"), 2, people)
    assert not is_confirmed([0], MANY, 1, people)


def in_step(step: int) -> PassId:
    return PassId(Term(1), StepNumber(step))


def test_one_broken_device_leaves_its_owners_others_alone_and_a_second_one_does_not() -> None:
    probation = Probation(two_and_many().people)
    for step in (0, 1):
        probation.strike("m1", in_step(step))
    assert probation.strikes("m1") == 2 and not probation.is_tried("m2")
    probation.strike("m2", in_step(2))
    assert [probation.strikes(peer) for peer in (*MANY, "bob")] == [3, 3, 3, 0]
    probation.strike("m3", in_step(4))
    assert probation.strikes("m1") == 4 and probation.is_benched("m1", 7) and not probation.is_benched("bob", 4)


def test_the_core_knows_the_passes_of_its_record_and_of_new_admissions() -> None:

    admitted = Controls.of([Command(1, "admit", device("m1", "m").value, "", "", "r1")])
    core = CoordinatorCore(Actor("c", 0), SETTINGS, 0, None, None, controls=admitted)
    core.handle(Tick(), 0.0)
    core.handle(TermWritten(1), 0.0)
    core.handle(CommandWritten(Command(2, "admit", device("m2", "m").value, "", "", "r2")), 0.0)
    for peer in ("m1", "m2", "bob"):
        core.handle(Received(Actor(peer, 1), Join(Actor(peer, 1))), 0.0)
    assert core.members.people.count(("m1", "m2", "bob")) == 2


def test_an_observers_pass_gives_a_device_no_vote_of_its_own() -> None:
    """Records may say that a device that trains observes too: only its peer's pass counts."""
    watches = Device(f"{ord('w'):032x}", 8, "m1", observes=True)
    commands = [Command(1 + n, "admit", device(peer, "m").value, "", "", f"r{n}") for n, peer in enumerate(MANY)]
    core = CoordinatorCore(Actor("c", 0), SETTINGS, 0, None, None, controls=Controls.of(commands))
    core.handle(Tick(), 0.0)
    core.handle(TermWritten(1), 0.0)
    for peer in MANY:
        core.handle(Received(Actor(peer, 1), Join(Actor(peer, 1))), 0.0)
    core.handle(CommandWritten(Command(4, "admit", watches.value, "", "", "r4")), 0.0)
    restarted = members_of(m=" ".join(MANY))
    restarted.people.learn(core.history.controls.admitted)
    for people in (core.members.people, restarted.people):
        assert not people.are_several and set(people.votes(MANY).values()) == {1}
    core.handle(CommandWritten(Command(5, "admit", device("m1", "n").value, "", "", "r5")), 0.0)
    assert core.members.people.votes(MANY) == {"m1": 1, "m2": Fraction(1, 2), "m3": Fraction(1, 2)}, "a peer's does"


def test_a_newcomer_gets_little_until_a_step_with_it_was_decided() -> None:
    actors = [Actor(peer, 1) for peer in ("one", "two", "new")]
    for counted, expected in (((), [4, 4, 4]), (("one", "two"), [6, 5, 1]), (("one", "two", "new"), [4, 4, 4])):
        settings = small_settings(stages=1, microbatches=12, steps=2, replicas=3)
        core = CoordinatorCore(Actor("c", 0), settings, 0, None, None)
        core.handle(Tick(), 0.0)
        core.handle(TermWritten(1), 0.0)
        for actor in actors:
            core.handle(Received(actor, Join(actor)), 0.0)
            member = core.members.get(actor)
            assert member is not None
            member.has_counted = actor.peer in counted
        for actor in actors:
            core.handle(Received(actor, Status(actor, StageIndex(0), 0, sequence=1)), 0.0)
        assert core.open_pass is not None
        assert [len(core.open_pass.pass_state.assigned_to(actor)) for actor in actors] == expected


@pytest.mark.parametrize("several", [True, False])
def test_of_two_people_that_differ_the_one_that_came_first_is_believed(several: bool) -> None:
    members = members_of(m="m1 m2 m3", b="bob") if several else members_of(m="m1 m2 m3 bob")
    for member in members:
        member.placed_at = 0.0 if member.actor.peer == "bob" else 1.0
    states = {member.actor: member.actor.peer == "bob" for member in members}
    found = drift_of(0, states, members)
    assert found is not None and (Actor("bob", 1) in found.believed) is several
