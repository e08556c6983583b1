"""Leaving by hand: what a peer says when it is asked to, and whom the coordinator lets go when."""

from __future__ import annotations

from typing import Any

import pytest
from first_step import COORDINATOR, ONE, PASS, SETTINGS, SPARE, STAGE, TWO, FirstStep, said

from swarm.events import PeerLeaving
from swarm.protocol import messages as m
from swarm.protocol.coordinator.io import RecordWritten, WriteRecord
from swarm.protocol.coordinator.passes.assignment import amend
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, Microbatch, StepNumber, Term
from swarm.protocol.io import Emit, LeaveRequested, LinkLost, Received, Send, Stop, Tick
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import AppliedStep, StateLoaded

# ---------------------------------------------------------------- a peer


def peer() -> PeerCore:
    """It holds version 0 of the only stage."""
    core = PeerCore(ONE, COORDINATOR, SETTINGS)
    core.handle(Received(COORDINATOR, m.Assign(Term(1), STAGE, 0)), 0.0)
    core.handle(StateLoaded(STAGE, 0, 1), 0.0)
    return core


def stopped(actions: Any) -> list[str]:
    return [a.reason for a in actions if isinstance(a, Stop)]


def test_a_peer_says_at_once_that_it_is_leaving_and_stays_until_it_is_dismissed() -> None:
    core = peer()
    orders = core.handle(LeaveRequested("left"), 1.0)
    (status,) = said(orders, m.Status)
    assert status.leaving and not stopped(orders)
    assert [a.event for a in orders if isinstance(a, Emit)] == [PeerLeaving(str(ONE), 0, "left", SETTINGS.leave_s)]
    assert not stopped(core.handle(Received(TWO, m.Dismiss(Term(1), "go")), 1.1)), "only the coordinator dismisses"
    orders = core.handle(Received(COORDINATOR, m.Dismiss(Term(1), "others hold stage 0")), 1.2)
    assert stopped(orders) == ["left: others hold stage 0"]
    assert [leave.reason for leave in said(orders, m.Leave)] == ["left: others hold stage 0"]
    assert isinstance(orders[-1], Stop), "nothing is said after the goodbye"
    assert not core.handle(Tick(), 60.0), "nor later"


def test_a_peer_that_is_not_dismissed_goes_by_itself() -> None:
    core = peer()
    core.handle(LeaveRequested("left"), 1.0)
    until = 1.0 + SETTINGS.leave_s
    assert core.next_wakeup() <= until
    assert not stopped(core.handle(Tick(), until - 0.01))
    (reason,) = stopped(core.handle(Tick(), until))
    assert "not dismissed within 2 s" in reason


def test_a_peer_that_is_asked_twice_goes_at_once() -> None:
    core = peer()
    core.handle(LeaveRequested("left"), 1.0)
    assert stopped(core.handle(LeaveRequested("left"), 1.1)) == ["left: asked twice"]


def test_a_peer_that_holds_nothing_goes_at_once() -> None:
    core = PeerCore(ONE, COORDINATOR, SETTINGS)
    assert stopped(core.handle(LeaveRequested("left"), 1.0)) == ["left: nothing depended on this peer"]


@pytest.mark.parametrize("before", [True, False])
def test_a_peer_does_not_wait_for_a_coordinator_that_is_out_of_reach(before: bool) -> None:
    core = peer()
    if before:
        core.handle(LinkLost(COORDINATOR), 0.5)
        core.handle(Tick(), 0.9)
        assert stopped(core.handle(LeaveRequested("left"), 1.0))
        return
    core.handle(LeaveRequested("left"), 1.0)
    assert not stopped(core.handle(LinkLost(COORDINATOR), 1.1)), "it may come back at once"
    (reason,) = stopped(core.handle(Tick(), 1.1 + SETTINGS.reconnect_grace_s))
    assert "out of reach" in reason


def test_a_peer_that_nobody_asked_to_leave_cannot_be_dismissed() -> None:
    assert not stopped(peer().handle(Received(COORDINATOR, m.Dismiss(Term(1), "go")), 1.0))


# ---------------------------------------------------------------- the coordinator


class Run(FirstStep):
    def prepare(self, actor: Actor, number: int) -> list[Any]:
        return self.hear(actor, m.Prepared(Attempt(PASS, STAGE, number), "d", 1.0, 1.0))


def dismissed(orders: list[Any]) -> list[Actor]:
    return [a.to for a in orders if isinstance(a, Send) and isinstance(a.message, m.Dismiss)]


def test_a_leaver_is_asked_for_what_it_has_not_begun_and_goes_when_the_step_is_decided() -> None:
    run = Run()
    orders = run.report(ONE, done=1, leaving=True)
    (order,) = said(orders, m.Release)
    assert order.microbatches == (2,) and not dismissed(orders)
    orders = run.hear(ONE, m.Released(PASS, 0, (Microbatch(2),)))
    table = said(orders, m.Amend)[0].table
    assert table.assigned_to(ONE) == {0} and table.roster == (ONE, TWO)
    run.report(ONE, done=1, leaving=True)
    run.report(TWO, done=14)
    for actor in (ONE, TWO):
        orders = run.prepare(actor, 1)
    assert [a for a in orders if isinstance(a, WriteRecord)] and not dismissed(orders)
    (write,) = [a for a in orders if isinstance(a, WriteRecord)]
    orders = run.take(RecordWritten(write.decision))
    assert dismissed(orders) == [ONE]
    (opening,) = said(orders, m.Open)
    assert opening.tables[0].roster == (TWO,), "it has no part in the next step"
    run.now += SETTINGS.heartbeat_s
    assert dismissed(run.take(Tick())) == [ONE], "until it is gone"


def test_a_leaver_that_has_begun_nothing_goes_at_once() -> None:
    run = Run()
    run.report(ONE, leaving=True)
    orders = run.hear(ONE, m.Released(PASS, 0, (Microbatch(0), Microbatch(2))))
    assert said(orders, m.Amend)[-1].table.assigned_to(ONE) == set()
    run.now += SETTINGS.heartbeat_s
    orders = run.take(Tick())
    assert said(orders, m.Amend)[-1].table.roster == (TWO,)
    assert dismissed(orders) == [ONE]
    assert not [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Fenced)]


def test_the_last_replica_is_kept_until_a_standby_has_its_state() -> None:
    run = Run(SETTINGS, SPARE)
    for actor in (ONE, TWO):
        run.report(actor, done=5 if actor == ONE else 10, leaving=True)
    for actor in (ONE, TWO):
        orders = run.prepare(actor, 0)
    (write,) = [a for a in orders if isinstance(a, WriteRecord)]
    orders = run.take(RecordWritten(write.decision))
    assert not dismissed(orders) and run.core.phase is Phase.BETWEEN
    assert {a.to for a in orders if isinstance(a, Send) and isinstance(a.message, m.Decide)} == {ONE, TWO}
    orders = run.report(ONE, version=1, pass_id=None, leaving=True)
    (assign,) = said(orders, m.Assign)
    assert (assign.stage, assign.version, assign.donors) == (0, 1, (m.Donor(ONE, 0), m.Donor(TWO, 1)))
    assert not dismissed(orders)
    orders = run.report(SPARE, version=1, pass_id=None, state_term=1)
    assert dismissed(orders) == [ONE, TWO] and said(orders, m.Open)[0].tables[0].roster == (SPARE,)


def test_the_last_replica_is_told_what_is_lost_when_nobody_can_take_it_up() -> None:
    run = Run()
    for actor in (ONE, TWO):
        run.report(actor, leaving=True)
    for actor in (ONE, TWO):
        orders = run.prepare(actor, 0)
    (write,) = [a for a in orders if isinstance(a, WriteRecord)]
    orders = run.take(RecordWritten(write.decision))
    assert dismissed(orders) == [ONE, TWO]
    reason = said(orders, m.Dismiss)[0].reason
    assert "no peer can take up stage 0 at version 1" in reason and "from version 0" in reason


def test_a_step_that_keeps_the_last_replica_too_long_is_given_up_for_its_state() -> None:
    run = Run(SETTINGS, SPARE)
    for actor in (ONE, TWO):
        run.report(actor, leaving=True)
    run.now += 0.6 * SETTINGS.leave_s
    orders = run.take(Tick())
    assert run.core.phase is Phase.STARTING
    assert any("another peer must take up stage 0 first" in str(a.event) for a in orders if isinstance(a, Emit))


def test_a_leaver_is_let_go_at_once_when_the_step_will_take_too_long() -> None:
    """Its siblings can begin with its work, and its owner need not wait in vain."""
    run = Run()
    run.report(TWO, done=2, seconds_per_microbatch=10.0)
    orders = run.report(ONE, done=1, seconds_per_microbatch=10.0, leaving=True)
    assert said(orders, m.Fenced) and dismissed(orders) == [ONE]


def test_what_a_dead_sibling_had_does_not_go_to_a_leaver_if_another_is_there() -> None:
    table = m.StageTable(3, (ONE, TWO, SPARE), (0, 1, 2, 0))
    weights = dict.fromkeys((ONE, TWO, SPARE), 1.0)
    after = amend(table, [ONE], [Microbatch(0), Microbatch(3)], weights, [TWO])
    assert [after.assignee(microbatch) for microbatch in range(4)] == [SPARE, TWO, SPARE, SPARE]
    alone = amend(table, [ONE, SPARE], [Microbatch(0), Microbatch(2), Microbatch(3)], weights, [TWO])
    assert alone.assigned_to(TWO) == {0, 1, 2, 3}


def test_a_coordinator_that_is_asked_to_stop_closes_the_pass_first() -> None:
    run = Run()
    assert not stopped(run.take(LeaveRequested("interrupted")))
    for actor in (ONE, TWO):
        orders = run.prepare(actor, 0)
    (write,) = [a for a in orders if isinstance(a, WriteRecord)]
    assert not stopped(orders)
    orders = run.take(RecordWritten(write.decision))
    assert stopped(orders) == ["interrupted: 1 of 9 steps are decided. Peers keep their state"]
    assert len(said(orders, m.Decide)) == 2 and not said(orders, m.Open)


@pytest.mark.parametrize("again", [True, False])
def test_a_coordinator_does_not_wait_for_a_pass_for_ever(again: bool) -> None:
    run = Run()
    run.take(LeaveRequested("interrupted"))
    if not again:
        run.now += SETTINGS.leave_s
    orders = run.take(LeaveRequested("interrupted") if again else Tick())
    (reason,) = stopped(orders)
    assert "the open pass will be run again" in reason


def test_a_peer_that_leaves_after_the_decision_need_not_apply_it() -> None:
    core = peer()
    core.handle(LeaveRequested("left"), 1.0)
    core.handle(Received(COORDINATOR, m.Dismiss(Term(1), "others hold stage 0")), 1.1)
    assert not core.handle(AppliedStep(StepNumber(0), "d"), 1.2)
