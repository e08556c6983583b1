"""The account of each peer: what it costs the run against what its work saves."""

import pytest

from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.membership.delays import REMEMBERED, TOLERATED, Delays, Limit
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.probation import LONGEST, MOST_STRIKES, Probation
from swarm.protocol.ids import PassId, StepNumber, Term

LIMIT_S = 10.0
LIMIT = Limit(LIMIT_S, 0.0)
"""How long it stays away does not matter here."""


class Swarm:
    """Steps of one second. A peer that is on probation has no part in them."""

    def __init__(self) -> None:
        self.probation = Probation(People())
        self.delays = Delays(self.probation, People())
        self.lost = 0.0

    def step(self, step: int, held_up_s: float, saved_s: float = 0.0) -> bool:
        """Return True if the peer has a part in the step."""
        if self.probation.is_benched("peer", step):
            self.delays.passed(1.0, frozenset())
            return False
        pass_id = PassId(Term(1), StepNumber(step))
        self.lost += held_up_s
        self.delays.decided("peer", pass_id, held_up_s, saved_s, 1.0 + held_up_s, LIMIT)
        self.delays.passed(1.0 + held_up_s, frozenset({"peer"}))
        self.probation.worked("peer", pass_id)
        return True


@pytest.mark.parametrize("held_up_s", [0.5, 4.0, 40.0])
def test_who_holds_up_every_step_costs_little_in_the_long_run(held_up_s: float) -> None:
    swarm = Swarm()
    for step in range(4000):
        swarm.step(step, held_up_s)
    assert swarm.lost < 2 * TOLERATED * 4000 + MOST_STRIKES * LIMIT_S


def test_who_saves_as_much_as_it_costs_keeps_its_work() -> None:
    swarm = Swarm()
    assert all(swarm.step(step, held_up_s=5.0, saved_s=5.0) for step in range(500))
    assert not swarm.probation.is_tried("peer")


def test_one_long_delay_is_forgiven() -> None:
    swarm = Swarm()
    swarm.step(0, held_up_s=LIMIT_S - 1)
    assert not swarm.probation.is_tried("peer"), "less than the limit"
    swarm.step(1, held_up_s=2 * LIMIT_S)
    assert swarm.probation.strikes("peer") == 2
    worked = [step for step in range(2, 400) if swarm.step(step, held_up_s=0.0)]
    assert worked[0] == 3 and worked[-1] == 399 and not swarm.probation.is_tried("peer")
    assert not swarm.delays._owed


def test_the_accounts_are_bounded() -> None:
    delays = Delays(Probation(People()), People())
    for number in range(REMEMBERED + 10):
        delays.decided(f"peer{number}", PassId(Term(1), StepNumber(0)), 1e9, 0.0, 1.0, LIMIT)
    assert len(delays._owed) == REMEMBERED
    assert max(delays._owed.values()) == MOST_STRIKES * LIMIT_S


def test_who_is_late_in_every_step_does_not_raise_its_own_limit() -> None:
    delays = Delays(Probation(People()), People())
    assert delays.limit(4.0, 0.0, 0.1, 1.0).owed_s == 12.0
    for _ in range(100):
        limit = delays.limit(40.0, 36.0, 0.1, 1.0)
    assert limit == Limit(12.0, 4.0)
    assert delays.limit(1.0, 0.0, 3.0, 1.0).owed_s == 30.0
    assert Delays(Probation(People()), People()).limit(1.0, 0.0, 0.1, 60.0).owed_s == 10.0


def test_who_delayed_the_run_alone_is_remembered_until_it_owes_nothing() -> None:
    delays = Delays(Probation(People()), People())
    assert delays.decided("peer", PassId(Term(1), StepNumber(0)), 9.0, 0.0, 1.0, LIMIT, alone=True) is None
    assert not delays.was_alone("peer"), "it owes less than the limit"
    assert delays.decided("peer", PassId(Term(1), StepNumber(1)), 9.0, 0.0, 1.0, LIMIT, alone=True) is not None
    assert delays.was_alone("peer")
    delays.passed(100.0, frozenset())
    assert delays.was_alone("peer")
    delays.passed(100.0, frozenset())
    assert not delays.was_alone("peer")
    delays.decided("other", PassId(Term(1), StepNumber(2)), 19.0, 0.0, 1.0, LIMIT)
    assert not delays.was_alone("other")


def test_devices_of_one_person_share_what_is_tolerated() -> None:
    people = People()
    people.learn([Device("a" * 32, 4, "one"), Device("a" * 32, 4, "two"), Device("b" * 32, 4, "other")])
    for peer in ("one", "two", "other"):
        people.came(peer)
    delays = Delays(Probation(people), people)
    for peer in ("one", "two", "other"):
        delays.decided(peer, PassId(Term(1), StepNumber(0)), 9.0, 0.0, 1.0, LIMIT)
    owed = dict(delays._owed)
    delays.passed(10.0, frozenset())
    assert {peer: owed[peer] - delays._owed[peer] for peer in owed} == pytest.approx(
        {"one": 0.5, "two": 0.5, "other": 1}
    )


@pytest.mark.parametrize(("removed", "steps"), [(True, [13, 25]), (False, [0, 24])])
def test_who_was_removed_stays_away_for_as_long_as_it_has_cost_from_the_first_second(
    removed: bool, steps: list[int]
) -> None:
    probation = Probation(People())
    delays, left_out = Delays(probation, People()), []
    for step in (0, 50):
        pass_id = PassId(Term(1), StepNumber(step))
        if removed:
            probation.strike("peer", pass_id)
        charged = delays.decided("peer", pass_id, 6.2, 0.0, 2.0, Limit(LIMIT_S, 0.5), removed=removed)
        left_out.append(0 if charged is None else charged.steps)
        assert not probation.is_benched("peer", step + left_out[-1] + 1)
        assert not left_out[-1] or probation.is_benched("peer", step + left_out[-1])
    assert left_out == steps


def test_an_absence_is_bounded() -> None:
    probation = Probation(People())
    delays = Delays(probation, People())
    charged = delays.decided("peer", PassId(Term(1), StepNumber(0)), 1e9, 0.0, 1.0, Limit(LIMIT_S, 1e-9))
    assert charged is not None and charged.steps == LONGEST - 1
    assert not probation.is_benched("peer", LONGEST)
