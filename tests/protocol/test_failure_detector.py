"""Who is silent is gone; where many fall silent together it may be the coordinator that is cut off."""

from __future__ import annotations

from typing import Any

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Received, Send, Tick
from swarm.protocol.timeouts import WINDOW, shortest_silence
from swarm.simulation.runs.plan import small_settings

SETTINGS = small_settings(stages=1, microbatches=8, steps=2, replicas=4)
BEAT, PATIENCE = SETTINGS.heartbeat_s, SETTINGS.step_budget_s / 3
USUAL = shortest_silence(SETTINGS.step_budget_s, BEAT)
ACTORS = [Actor(f"p{number}", 1) for number in range(8)]
COORDINATOR = Actor("coordinator", 0)
PASS = PassId(Term(1), StepNumber(0))


class Swarm:
    """Eight who speak at every heartbeat, but for those who are named."""

    def __init__(self) -> None:
        self.members, self.failure_detector, self.now = Members(), FailureDetector(SETTINGS), 0.0
        for actor in ACTORS:
            self.members.add(actor, 0.0)
        self.go_on(10 * BEAT)

    def go_on(self, seconds: float, *quiet: Actor) -> list[tuple[Actor, float]]:
        """Who is given up in that time, and after how many seconds of it."""
        began, lost = self.now, []
        while self.now < began + seconds:
            self.now += BEAT
            for member in self.members:
                if member.actor not in quiet:
                    member.gaps.add(self.now - member.heard_at)
                    member.heard_at = self.now
            for member, _ in self.failure_detector.judge(self.members, self.now):
                lost.append((member.actor, self.now - began))
                self.members.remove(member.actor)
        return lost


def test_one_that_is_silent_is_given_up_after_its_deadline() -> None:
    ((actor, after),) = Swarm().go_on(2 * USUAL, ACTORS[3])
    assert actor == ACTORS[3] and USUAL < after <= USUAL + 2 * BEAT


def test_many_that_are_silent_together_are_waited_for() -> None:
    swarm = Swarm()
    assert not swarm.go_on(PATIENCE - BEAT, *ACTORS)
    assert swarm.failure_detector.waited_for == set(ACTORS)
    assert not swarm.go_on(BEAT) and not swarm.failure_detector.waited_for
    lost = swarm.go_on(2 * PATIENCE, *ACTORS[:2])
    assert {actor for actor, _ in lost} == set(ACTORS[:2])
    assert all(PATIENCE < after <= PATIENCE + 2 * BEAT for _, after in lost)


def test_the_first_of_many_to_exceed_its_deadline_is_waited_for() -> None:
    """All are silent, but the usual gaps of the others are longer, so they are not late yet."""
    swarm = Swarm()
    for member in swarm.members:
        for _ in range(WINDOW if member.actor != ACTORS[0] else 0):
            member.gaps.add(1.8 * USUAL / 3.5)
    assert not swarm.go_on(PATIENCE - BEAT, *ACTORS)
    assert not swarm.go_on(BEAT)
    ((actor, _),) = swarm.go_on(PATIENCE, ACTORS[0])
    assert actor == ACTORS[0], "the others speak: it is gone"


def test_the_last_to_come_back_has_as_long_again_as_the_gap_took() -> None:
    """TCP doubles the time between its attempts: the last connection may need as long again to carry something."""
    swarm, last = Swarm(), ACTORS[5]
    assert not swarm.go_on(0.6 * PATIENCE, *ACTORS)
    assert not swarm.go_on(0.6 * PATIENCE, last), "it has been silent for longer than its deadline, with the others"
    ((actor, after),) = swarm.go_on(2 * USUAL, last)
    assert actor == last and USUAL < after <= USUAL + 4 * BEAT


def test_half_that_come_back_later_have_as_long_again_too() -> None:
    """They are still many, but no longer those of a coordinator that is cut off."""
    swarm, half = Swarm(), ACTORS[:4]
    assert not swarm.go_on(0.8 * PATIENCE, *ACTORS)
    assert not swarm.go_on(0.8 * PATIENCE, *half), "their connections carry nothing yet"
    lost = swarm.go_on(2 * USUAL, *half)
    assert {actor for actor, _ in lost} == set(half)


def test_nobody_is_fenced_for_what_it_could_not_tell_a_coordinator_that_was_cut_off() -> None:
    core = CoordinatorCore(COORDINATOR, SETTINGS, 0, None, None)
    now, sequence = 0.0, 0

    def take(event: Any) -> list[Any]:
        nonlocal now
        now += 0.001
        return [a for a in core.handle(event, now) if isinstance(a, Send) and isinstance(a.message, m.Fenced | m.Amend)]

    def report(actor: Actor, done: int = 0) -> list[Any]:
        nonlocal sequence
        sequence += 1
        status = m.Status(
            actor, StageIndex(0), 0, PASS, (0,), done, queued=1, sequence=sequence, seconds_per_microbatch=0.01
        )
        return take(Received(actor, status))

    take(Tick())
    take(TermWritten(1))
    for actor in ACTORS[:4]:
        take(Received(actor, m.Join(actor)))
    orders = [order for actor in ACTORS[:4] for order in report(actor)]
    for _ in range(int(0.6 * PATIENCE / BEAT)):  # all have work at hand, and nothing more is heard of any
        now += BEAT
        orders += take(Tick())
    for back in (ACTORS[:2], ACTORS[:4]):  # they are heard again, and still at the same
        orders += [order for actor in back for order in report(actor)]
        now += BEAT
        orders += take(Tick())
    assert not orders
    for _ in range(int(PATIENCE / BEAT)):
        now += BEAT
        orders += [order for actor in ACTORS[:4] for order in report(actor)]
        orders += take(Tick())
    assert orders, "who is heard, and goes on doing nothing, is"
