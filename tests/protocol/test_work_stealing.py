"""What slow peers of a stage give up, and that several of them do so with one new table."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.coordinator.passes.work_stealing import SLOWER, WORTH, Busy, Idle, relief
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Microbatch, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Received, Send, Tick
from swarm.simulation.runs.plan import small_settings

COORDINATOR, FAST, SLOW, SLOWEST = (Actor(name, 1) for name in ("coordinator", "fast", "slow", "slowest"))
PASS = PassId(Term(1), StepNumber(0))
STAGE = StageIndex(0)
PACES = st.floats(0.01, 100.0)


def test_two_slow_peers_share_what_a_fast_one_can_do() -> None:
    assert relief({SLOW: Busy(4.0, 6, 6)}, [Idle(1.0)]) == {SLOW: 5}, "4 s for the one, 5 for the other"
    both = {SLOW: Busy(4.0, 6, 6), SLOWEST: Busy(4.0, 6, 6)}
    assert relief(both, [Idle(1.0)]) == {SLOW: 4, SLOWEST: 4}, "8 s for each of the three"
    assert relief({SLOW: Busy(4.0, 6, 6)}, [Idle(1.0)], promised=40) == {}, "it has enough to do"


@given(
    st.dictionaries(st.sampled_from([FAST, SLOW, SLOWEST]), st.tuples(PACES, st.integers(1, 30), st.integers(0, 30))),
    st.lists(PACES, max_size=5),
    st.integers(0, 5),
)
def test_nobody_gives_up_what_would_not_be_done_sooner(
    replicas: dict[Actor, tuple[float, int, int]], idle: list[float], promised: int
) -> None:
    busy = {actor: Busy(pace, left, min(left, movable)) for actor, (pace, left, movable) in replicas.items()}
    counts = relief(busy, [Idle(pace) for pace in idle], promised)
    for actor, count in counts.items():
        each = busy[actor]
        assert 0 < count <= min(each.left - 1, each.movable)
        assert each.pace > SLOWER * min(idle)
        assert each.left >= WORTH * (each.left - count)
    ends = [0.0] * len(idle)
    for _ in range(sum(counts.values())):
        first = min(range(len(idle)), key=lambda i: ends[i] + idle[i])
        ends[first] += idle[first]
    if counts:
        assert max(ends) < max(each.left * each.pace for each in busy.values())


class Run:
    """A step of one stage of three, with a clock that goes on by a millisecond with every input."""

    def __init__(self, **capacity: float) -> None:
        """`capacity`: of who has another than 1, by name."""
        settings = small_settings(stages=1, microbatches=12, steps=2, replicas=3)
        self.core = CoordinatorCore(COORDINATOR, settings, 0, None, None)
        self.capacity = {actor: capacity.get(actor.peer, 1.0) for actor in (FAST, SLOW, SLOWEST)}
        self.now = 0.0
        self.sequence = 0
        self.take(Tick())
        self.take(TermWritten(1))
        for actor in (FAST, SLOW, SLOWEST):
            self.take(Received(actor, m.Join(actor, capacity=self.capacity[actor])))
        for actor in (FAST, SLOW, SLOWEST):
            self.report(actor, 0, None)
        assert self.core.phase is Phase.OPEN

    def take(self, event: Any) -> list[Any]:
        self.now += 0.001
        return [a for a in self.core.handle(event, self.now) if isinstance(a, Send)]

    def report(self, actor: Actor, done: int, seconds: float | None, queued: int = 0) -> list[Any]:
        self.sequence += 1
        said = {"seconds_per_microbatch": seconds, "capacity": self.capacity[actor]}
        status = m.Status(actor, STAGE, 0, PASS, (0,), done, queued=queued, sequence=self.sequence, **said)
        return self.take(Received(actor, status))

    @property
    def table(self) -> m.StageTable:
        assert self.core.open_pass is not None
        return self.core.open_pass.pass_state.tables[0]

    def heartbeat(self, pace: float | None = 0.1, slow: float | None = 1.0, queued: int = 0) -> list[Any]:
        """FAST has done all that is its own, at this pace; the others nothing, at theirs."""
        self.report(SLOW, 0, slow, queued)
        self.report(SLOWEST, 0, slow, queued)
        self.report(FAST, _bits(self.table.assigned_to(FAST)), pace)
        self.now += self.core.settings.heartbeat_s
        return self.take(Tick())

    def asked(self, pace: float | None = 0.1, slow: float | None = 1.0, queued: int = 0) -> dict[Actor, m.Release]:
        orders = self.heartbeat(pace, slow, queued)
        return {order.to: order.message for order in orders if isinstance(order.message, m.Release)}

    def answer(self, actor: Actor, asked: m.Release) -> list[m.Amend]:
        orders = self.take(Received(actor, m.Released(PASS, asked.number, asked.microbatches)))
        return [order.message for order in orders if isinstance(order.message, m.Amend)]


def _bits(microbatches: set[Microbatch]) -> int:
    return sum(1 << number for number in microbatches)


def test_what_several_give_up_is_handed_on_with_one_table() -> None:
    run = Run()
    asked = run.asked()
    assert asked.keys() == {SLOW, SLOWEST}
    assert not run.answer(SLOW, asked[SLOW]), "a table now would void the other's answer"
    table = run.answer(SLOWEST, asked[SLOWEST])[0].table
    assert {*asked[SLOW].microbatches, *asked[SLOWEST].microbatches} < table.assigned_to(FAST)


def test_who_has_done_nothing_yet_is_not_taken_for_fast() -> None:
    """Nothing is known of a peer that was too slow for a single microbatch, but that the step has only begun."""
    run = Run(fast=1e-6)
    assert not run.table.assigned_to(FAST)
    assert not run.asked(pace=None) and run.asked(pace=0.1)
    assert Run().asked(pace=None), "it has done four"


def test_who_does_not_answer_is_waited_for_until_the_next_heartbeat() -> None:
    run = Run()
    asked = run.asked()
    run.answer(SLOW, asked[SLOW])
    orders = run.heartbeat()
    table = next(order.message.table for order in orders if isinstance(order.message, m.Amend))
    assert set(asked[SLOW].microbatches) < table.assigned_to(FAST)
    assert set(asked[SLOWEST].microbatches) < table.assigned_to(SLOWEST)


def test_who_is_at_work_on_one_thing_for_long_is_as_slow_as_that() -> None:
    """It was as fast as its siblings before. What it has finished in the last heartbeat it may not have told yet."""
    run = Run()
    asked = [bool(run.asked(slow=0.1, queued=2)) for _ in range(3)]
    assert asked == [False, True, True]
    run = Run()
    assert not any(run.asked(slow=0.1) for _ in range(5)), "they have nothing that they could be computing"


def test_who_has_not_been_measured_is_slow_only_if_it_has_work_at_hand() -> None:
    """Who waits for the frames of others is not: nobody could do sooner what it has left."""
    run = Run()
    assert not run.asked(slow=None)
    assert run.asked(slow=None, queued=1).keys() == {SLOW, SLOWEST}
