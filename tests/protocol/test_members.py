"""What the coordinator believes of a member's state: of this history, and still there."""

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import MOST_TERMS_MISSED, Members
from swarm.protocol.ids import Actor, Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.messages import Decision, Prepared, StageOutcome, Status

ME = Actor("one", 1)
STAGE = StageIndex(0)


def status(version: int, state_term: int) -> Status:
    return Status(ME, STAGE, version, state_term=state_term)


def test_a_state_from_before_a_rollback_does_not_count() -> None:
    member = Member(ME, 0.0, STAGE)
    member.report(status(4, state_term=2), 2, rolled_back=0)
    assert member.version == 4
    member.report(status(4, state_term=2), 2, rolled_back=3)
    assert member.version is None, "done again, version 4 may have come out otherwise"
    member.assigned = (STAGE, 4)
    member.report(status(4, state_term=2), 2, rolled_back=3)
    assert member.assigned == (STAGE, 4), "nor is it what it was told to fetch"
    member.report(status(4, state_term=3), 2, rolled_back=3)
    assert (member.version, member.assigned) == (4, None)


def test_links_are_known_to_a_coordinator_that_hears_of_a_peer_by_its_status_only() -> None:
    member = Member(ME, 0.0)
    member.report(Status(ME, STAGE, 0, offered_uplink=1e6, downlink=1e7), 1)
    assert (member.offered_uplink, member.downlink) == (1e6, 1e7)
    member.report(Status(ME, STAGE, 0, offered_uplink=0.5, downlink=1e13), 1)
    assert (member.offered_uplink, member.downlink) == (None, None), "which cannot be true"


def test_reduced_bytes_of_an_earlier_term_may_be_gone_though_they_were_equal() -> None:
    outcomes = (StageOutcome(0, "digest"),)
    decision = Decision(Term(2), StepNumber(0), 0.5, 1.0, 8, 1.0, outcomes)
    for term, can in ((2, True), (1, False)):
        member = Member(ME, 0.0, STAGE, version=0)
        attempt = Attempt(PassId(Term(term), StepNumber(0)), STAGE, 0)
        member.prepared = Prepared(attempt, "digest", 1.0, 1.0)
        assert member.can_apply(decision) is can


def test_next_term_is_above_what_peers_have_heard_of_but_not_what_one_makes_up() -> None:
    members = Members()
    for number, term in enumerate((4, 7, 5)):
        actor = Actor(f"p{number}", 1)
        members.add(actor, 0.0).report(Status(actor, STAGE, 4, term=term, sequence=1), 2)
    assert members.next_term(Term(2)) == 8
    assert members.next_term(Term(9)) == 10
    liar = Actor("liar", 1)
    members.add(liar, 0.0).report(Status(liar, STAGE, 4, term=1 << 60, sequence=1), 2)
    assert members.next_term(Term(2)) == 2 + MOST_TERMS_MISSED + 1


def test_record_is_behind_when_most_have_heard_of_later_terms() -> None:
    members = Members()
    assert not members.are_beyond(Term(0))
    for number, term in enumerate((3, 2, 3)):
        actor = Actor(f"p{number}", 1)
        members.add(actor, 0.0)
        assert not members.are_beyond(Term(3))
        members.get(actor).report(Status(actor, STAGE, 4, term=term, sequence=1), 2)  # type: ignore[union-attr]
    assert members.are_beyond(Term(2)) and not members.are_beyond(Term(3))
    other = Actor("other", 1)
    members.add(other, 0.0).report(Status(other, STAGE, 4, term=2, sequence=1), 2)
    assert not members.are_beyond(Term(2)), "two of four"


def test_late_report_of_an_older_attempt_does_not_hide_the_reduced_bytes_of_the_last_one() -> None:
    decision = Decision(Term(2), StepNumber(5), 0.5, 1.0, 8, 1.0, (StageOutcome(1, "last"),))
    member = Member(ME, 0.0, STAGE, version=5)
    newest = Prepared(Attempt(PassId(Term(2), StepNumber(5)), STAGE, 1), "last", 1.0, 1.0)
    member.prepares(newest)
    for step, number in ((4, 3), (5, 0)):
        member.prepares(Prepared(Attempt(PassId(Term(2), StepNumber(step)), STAGE, number), "older", 1.0, 1.0))
        assert member.can_apply(decision)
    member.report(Status(ME, STAGE, 5, state_term=2, prepared=newest), 2)
    assert member.can_apply(decision)


def test_reports_from_before_a_member_was_lost_are_old_after_it_too() -> None:
    for incarnation, news in ((1, False), (2, True)):
        members = Members()
        before = members.add(ME, 0.0)
        assert before.is_news(Status(ME, STAGE, 5, sequence=7))
        members.remove(ME)
        again = members.add(Actor(ME.peer, incarnation), 1.0)
        assert again.is_news(Status(ME, STAGE, 4, sequence=6)) is news
        assert again.is_news(Status(ME, STAGE, 5, sequence=8))
