"""Who is at fault for what failed, given who says so and who sent it what it failed on."""

from __future__ import annotations

from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.membership.accusations import LASTING, MOST_FAILURES, Accusations, Failure
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.halves import Halves
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import Actor, Microbatch


def failure(who: str, *senders: str, m: int | None = 0, nonfinite: bool = False, stage: int = 0) -> Failure:
    which = None if m is None else Microbatch(m)
    return Failure(stage, which, who, frozenset(senders), "out of memory", nonfinite)


def test_who_is_common_to_all_failures_is_at_fault_and_the_others_are_forgiven() -> None:
    accusations = Accusations(People())
    accusations.note(failure("x", "g", m=1))
    accusations.note(failure("y", "g", m=3))
    assert [accusations.against(peer) for peer in ("g", "x", "y", "other")] == [2, 1, 1, 0]
    assert accusations.settle(["x", "y", "other"]) == ["g"]
    assert accusations.against("g") == 0, "the next step is another one"


def test_who_fails_alone_is_at_fault_itself() -> None:
    accusations = Accusations(People())
    accusations.note(failure("liar", "g"))
    assert accusations.settle(["sibling", "g"]) == ["liar"]


def test_two_that_accuse_one_are_doubted_when_they_do_it_again() -> None:
    """The first time nobody can tell."""
    accusations = Accusations(People())
    for who in ("one", "two"):
        accusations.note(failure(who, "framed"))
    assert accusations.settle(["sibling"]) == ["framed"]
    for who in ("one", "two"):
        accusations.note(failure(who, "other"))
    assert accusations.settle(["sibling", "framed"]) == ["one", "two"]


def test_a_peer_accuses_another_once_in_a_step_however_often_it_fails() -> None:
    accusations = Accusations(People())
    for _ in range(5):
        accusations.note(failure("x", "g"))
    assert accusations.against("g") == accusations.against("x") == 1
    for _ in range(2 * MOST_FAILURES):
        accusations.note(failure("x", "g"))
    assert len(accusations.failures) == MOST_FAILURES


def test_doubts_are_forgotten_with_steps_in_which_nothing_is_said() -> None:
    accusations = Accusations(People())
    accusations.note(failure("x", "g"))
    accusations.note(failure("y", "g"))
    assert accusations.settle(["x", "y"]) == ["g"]
    for _ in range(2):
        assert accusations.settle(["x", "y", "g"]) == []
    accusations.note(failure("x", "g"))
    assert accusations.settle(["y", "g"]) == ["x"], "as if nothing had been"


def test_what_is_over_no_microbatch_is_a_fault_only_when_it_lasts() -> None:
    accusations = Accusations(People())
    for step in range(1, LASTING + 1):
        accusations.note(failure("x", m=None))
        assert accusations.settle([]) == (["x"] if step == LASTING else [])


def test_what_is_not_finite_whoever_computes_it_is_nobodys_fault() -> None:
    accusations = Accusations(People())
    accusations.note(failure("x", "g", nonfinite=True))
    accusations.note(failure("y", "h", nonfinite=True))
    accusations.note(failure("z", "g"))
    assert accusations.common(0, Microbatch(0)) == frozenset() == accusations.common_to_nonfinite
    accusations.nobodys_fault()
    assert [accusations.against(peer) for peer in ("x", "y", "g", "z")] == [0, 0, 1, 1]
    assert accusations.settle(["x", "y", "g", "h"]) == ["z"]


def test_each_half_is_left_out_once_and_never_all_of_a_stage() -> None:
    stages = [[Actor(f"{stage}{place}", 1) for place in range(count)] for stage, count in enumerate((1, 2, 5))]
    for step in range(8):
        halves = Halves(People())
        assert not halves.begun and halves.split(stages, step)
        first = halves.left_out
        assert halves.next() and not first & halves.left_out
        everybody = {actor.peer for roster in stages[1:] for actor in roster}
        assert first | halves.left_out == everybody
        for roster in stages[1:]:
            assert 0 < sum(actor.peer in first for actor in roster) < len(roster)
        assert not halves.next() and not halves.left_out and halves.begun
    assert not Halves(People()).split([[Actor("alone", 1)]], 0)


def test_a_device_that_comes_later_is_left_out_with_the_other_devices_of_its_person() -> None:
    people = People()
    people.learn([Device("one", 2, "a"), Device("one", 2, "late"), Device("two", 1, "b")])
    for peer in ("a", "b", "late"):
        people.came(peer)
    halves = Halves(people)
    assert halves.split([[Actor("a", 1), Actor("b", 1)]], 0)
    for _ in range(2):
        assert [halves.leaves_out(peer) for peer in ("a", "late")] == [halves.left_out == {"a"}] * 2
        assert halves.leaves_out("b") == (halves.left_out == {"b"})
        halves.next()
    assert not halves.leaves_out("late")


def test_others_than_have_failed_try_at_once_and_who_has_failed_later_and_later() -> None:
    failure_history, one, two = FailureHistory(People()), Actor("one", 1), Actor("two", 1)
    for now in (10.0, 20.0, 30.0, 40.0):
        failure_history.opened([one])
        failure_history.attempt_failed("no memory", now)
    assert failure_history.rest_until([one], 1.0) == 47.0
    assert failure_history.rest_until([Actor("one", 2)], 1.0) == 47.0, "a restart is no other peer"
    assert failure_history.rest_until([one, two], 1.0) == 40.0
    assert "step 7 has failed 4 times" in failure_history.why_rests([one], 7)
    failure_history.decided()
    assert failure_history.rest_until([one], 1.0) == 40.0
