"""A peer that pauses: what it says and does, and what the coordinator makes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from first_step import COORDINATOR, ONE, PASS, SETTINGS, SPARE, STAGE, TWO, FirstStep, said

from swarm.events import PeerPaused, PeerResumed, StateChanged
from swarm.protocol import messages as m
from swarm.protocol.coordinator.io import RecordWritten, WriteRecord
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, Direction, FrameKey, Microbatch, PassKind, Term
from swarm.protocol.io import Emit, Received, Tick
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import Backward, Forward, ForwardDone, PauseChanged, StateLoaded
from swarm.simulation.runs.plan import small_settings

HOT = "83 °C (limit 80)"


def told(actions: Any, kind: type) -> list[Any]:
    return [a.event for a in actions if isinstance(a, Emit) and isinstance(a.event, kind)]


# ---------------------------------------------------------------- a peer


def peer() -> PeerCore:
    """ONE, in an open step as the first of two stages, with three microbatches of its own."""
    settings = small_settings(stages=2, microbatches=3, steps=3, replicas=1)
    core = PeerCore(ONE, COORDINATOR, settings)
    core.handle(Received(COORDINATOR, m.Assign(Term(1), STAGE, 0)), 0.0)
    core.handle(StateLoaded(STAGE, 0, 1), 0.0)
    tables = tuple(m.StageTable(0, (actor,), (0, 0, 0)) for actor in (ONE, TWO))
    core.handle(Received(COORDINATOR, m.Open(PASS, PassKind.TRAIN, tables, None)), 0.1)
    return core


def tokens(core: PeerCore, microbatch: int) -> list[Any]:
    key = FrameKey(PASS, 0, Direction.FORWARD, Microbatch(microbatch))
    return list(core.handle(Received(COORDINATOR, m.Frame(key, b"")), 0.2))


def begun(actions: Any) -> list[tuple[str, int]]:
    return [(type(a).__name__, a.microbatch) for a in actions if isinstance(a, Forward | Backward)]


def test_a_paused_peer_says_so_at_once_and_begins_nothing_until_it_goes_on() -> None:
    core = peer()
    assert begun(tokens(core, 0)) == [("Forward", 0)]
    orders = core.handle(PauseChanged(HOT), 0.25)
    (status,) = said(orders, m.Status)
    assert status.paused == HOT and status.queued == 1, "what it has begun is finished"
    assert told(orders, PeerPaused) == [PeerPaused(str(ONE), 0, HOT)]
    gradient = m.Frame(FrameKey(PASS, 1, Direction.BACKWARD, Microbatch(0)), b"")
    orders = [
        *tokens(core, 1),
        *core.handle(ForwardDone(PASS, Microbatch(0), b"", True, 0.01), 0.3),
        *core.handle(Received(TWO, gradient), 0.4),
    ]
    assert not begun(orders)
    (status,) = said(core.handle(Tick(), 0.5), m.Status)
    assert (status.paused, status.queued) == (HOT, 0), "it is not stalled"
    orders = core.handle(PauseChanged(""), 0.6)
    assert sorted(begun(orders)) == [("Backward", 0), ("Forward", 1)]
    (status,) = said(orders, m.Status)
    assert not status.paused and told(orders, PeerResumed) == [PeerResumed(str(ONE), 0, HOT)]


def test_a_paused_peer_gives_up_what_it_has_not_begun() -> None:
    core = peer()
    core.handle(PauseChanged(HOT), 0.2)
    for microbatch in range(3):
        tokens(core, microbatch)
    released = (Microbatch(0), Microbatch(1), Microbatch(2))
    orders = core.handle(Received(COORDINATOR, m.Release(PASS, 0, released)), 0.3)
    assert said(orders, m.Released)[0].microbatches == released


def test_a_peer_without_a_stage_says_so_too() -> None:
    core = PeerCore(ONE, COORDINATOR, small_settings(stages=1, microbatches=2, steps=3, replicas=1))
    (join,) = said(core.handle(PauseChanged("x" * 200), 0.0), m.Join)
    assert join.paused == "x" * m.MAX_PAUSED


# ---------------------------------------------------------------- the coordinator


class Run(FirstStep):
    """ONE and TWO are the replicas of the only stage, with four microbatches."""

    def __init__(self, *more: Actor, **settings: Any) -> None:
        super().__init__(dataclasses.replace(SETTINGS, **settings), *more)

    def later(self, seconds: float, **statuses: dict[str, Any]) -> list[Any]:
        """All report once a heartbeat, as in `statuses` of their peers, for so long. The spare one loads its stage."""
        orders, until = [], self.now + seconds
        while self.now < until:
            self.now += self.settings.heartbeat_s
            for actor in (ONE, TWO):
                orders += self.report(actor, **statuses.get(actor.peer, {}))
            if self.core.stages_held.get(str(SPARE)) is not None:
                orders += self.report(SPARE, version=None, pass_id=None, loading=0)
            orders += self.take(Tick())
        return orders

    def decide(self, *prepared: Actor) -> list[Any]:
        """The step is decided; `prepared` say that they are, in this order."""
        assert self.core.open_pass is not None
        number = self.core.open_pass.pass_state.tables[0].number
        orders: list[Any] = []
        for actor in prepared:
            orders = self.hear(actor, m.Prepared(Attempt(PASS, STAGE, number), "d", 1.0, 1.0))
        (write,) = [a for a in orders if isinstance(a, WriteRecord)]
        return self.take(RecordWritten(write.decision))


def test_its_unfinished_work_goes_to_siblings_and_what_it_has_finished_counts() -> None:
    run = Run()
    orders = run.report(ONE, done=1, paused=HOT)
    (order,) = said(orders, m.Release)
    assert order.microbatches == (2,) and told(orders, PeerPaused) == [PeerPaused(str(ONE), 0, HOT)]
    table = said(run.hear(ONE, m.Released(PASS, 0, (Microbatch(2),))), m.Amend)[0].table
    assert table.assigned_to(ONE) == {0} and table.roster == (ONE, TWO)
    run.report(ONE, done=1, paused=HOT)
    run.report(TWO, done=14)
    (opening, *_) = said(run.decide(ONE, TWO), m.Open)
    assert opening.tables[0].roster == (TWO,), "no work for it in the next step"
    assert [(each.actor, each.version) for each in opening.listeners] == [(ONE, 1)], "but it hears what is decided"


def test_nobody_is_fenced_for_a_pause_and_who_has_finished_nothing_listens_at_once() -> None:
    run = Run()
    run.report(ONE, paused=HOT)
    run.hear(ONE, m.Released(PASS, 0, (Microbatch(0), Microbatch(2))))
    orders = run.later(1.0, one={"paused": HOT}, two={"queued": 1})
    assert said(orders, m.Amend)[-1].table.roster == (TWO,)
    assert not said(orders, m.Fenced)
    assert [each.actor for each in said(orders, m.Open)[-1].listeners] == [ONE]


def test_it_gets_work_again_when_it_goes_on() -> None:
    run = Run()
    run.report(ONE, done=5, paused=HOT)
    run.report(TWO, done=10)
    run.decide(ONE, TWO)
    run.now += run.settings.heartbeat_s
    orders = run.report(ONE, version=1, pass_id=None, heard=dataclasses.replace(PASS, step=1))
    assert told(orders, PeerResumed) == [PeerResumed(str(ONE), 0, HOT)]
    run.report(TWO, version=1, pass_id=dataclasses.replace(PASS, step=1))
    assert run.core.members.withheld() == []


def test_a_step_waits_for_the_only_replica_however_long_and_says_so() -> None:
    run = Run(recruit_after_s=10.0)
    both = {"one": {"paused": HOT, "done": 1}, "two": {"paused": HOT, "done": 2}}
    orders = run.later(50 * run.settings.step_budget_s, **both)
    assert run.core.phase is Phase.OPEN and run.core.history.term == 1
    assert not said(orders, m.Fenced)
    words = f"stage 0 waits for {ONE}, which is paused: {HOT}"
    assert StateChanged("waiting", words) in told(orders, StateChanged)
    orders = run.later(1.0, one={"done": 5}, two={"done": 10})
    assert StateChanged("training", "every stage is held") in told(orders, StateChanged)
    run.decide(ONE, TWO)


def test_without_a_pause_such_a_step_is_given_up() -> None:
    run = Run(recruit_after_s=10.0)
    run.later(3 * run.settings.step_budget_s, one={"done": 1}, two={"done": 2})
    assert run.core.phase is Phase.STARTING


def test_after_a_while_a_standby_takes_its_place() -> None:
    run = Run(SPARE, recruit_after_s=1.0)
    assert run.core.stages_held[str(SPARE)] is None
    run.later(0.8, one={"paused": HOT}, two={"queued": 1})
    assert run.core.stages_held[str(SPARE)] is None, "pauses are short as a rule"
    run.later(0.6, one={"paused": HOT}, two={"queued": 1})
    assert run.core.stages_held[str(SPARE)] == 0


def test_a_step_that_waits_for_long_is_run_again_if_another_could_take_the_stage() -> None:
    run = Run(SPARE, recruit_after_s=1.0)
    orders = run.later(3.0, one={"paused": HOT, "done": 1}, two={"paused": HOT, "done": 2})
    assert run.core.phase is Phase.STARTING
    assert any("another peer should take up stage 0" in str(a.event) for a in orders if isinstance(a, Emit))


def test_who_goes_on_first_takes_over_even_the_last_microbatch_that_the_step_waits_for() -> None:
    run = Run(recruit_after_s=10.0)
    run.report(ONE, done=5, paused=HOT)
    run.report(TWO, done=10)
    run.decide(ONE, TWO)
    after = dataclasses.replace(PASS, step=1)
    listens = {"version": 1, "pass_id": None, "heard": after}
    works = {"version": 1, "pass_id": after, "numbers": (0,), "done": 7}
    run.later(1.0, one=listens | {"paused": HOT}, two=works | {"paused": HOT})
    orders = run.later(1.0, one=listens, two=works | {"paused": HOT})
    assert said(orders, m.Release)[0].microbatches == (3,)
    table = said(run.hear(TWO, m.Released(after, 0, (Microbatch(3),))), m.Open)[0].tables[0]
    assert table.roster == (TWO, ONE) and table.assigned_to(ONE) == {3}


def test_between_steps_the_run_waits_and_says_for_whom() -> None:
    run = Run()
    for actor, done in ((ONE, 5), (TWO, 10)):
        run.report(actor, done=done, paused=HOT)
    orders = run.decide(ONE, TWO)
    words = f"stage 0 waits, because {ONE} is paused: {HOT}; {TWO} is paused: {HOT}"
    assert StateChanged("waiting", words) in told(orders, StateChanged) and not said(orders, m.Open)
    run.now += run.settings.heartbeat_s
    (opening, *_) = said(run.report(TWO, version=1, pass_id=None), m.Open)
    assert opening.tables[0].roster == (TWO,)


def test_a_peer_that_changes_its_mind_all_the_time_is_heard_once_a_heartbeat() -> None:
    run = Run()
    orders = [order for turn in range(40) for order in run.report(ONE, paused=HOT if turn % 2 else "")]
    assert len(told(orders, PeerPaused)) == 1 and not told(orders, PeerResumed)
