"""The coordinator's core by hand: two replicas of one stage, and one message after another."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.events import CheckpointsMissing, PeerLost, PeerMoved
from swarm.protocol import messages as m
from swarm.protocol.admissions import Device
from swarm.protocol.answers import MOST
from swarm.protocol.coordinator.checkpoints import Checkpoints
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import (
    CollectCheckpoint,
    CoordinatorInput,
    Feed,
    RecordWritten,
    TermWritten,
    Transferring,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator.membership.doubts import Doubts
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.kept_back import KeptBack
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, Direction, FrameKey, Microbatch, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, Received, Send, Stop, Tick
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.simulation.runs.plan import small_settings

ME, ONE, TWO = Actor("coordinator", 0), Actor("one", 1), Actor("two", 1)
PASS = PassId(Term(1), StepNumber(0))
ATTEMPT = Attempt(PASS, StageIndex(0), 0)


class Coordinator:
    """A core, what it orders, and a clock that goes on by a millisecond with every input."""

    def __init__(self, **other: Any) -> None:
        settings = replace(small_settings(stages=1, microbatches=2, steps=2, replicas=2), **other)
        self.core = CoordinatorCore(ME, settings, 0, None, None)
        self.now = 0.0
        self.reported = {ONE: 0, TWO: 0}
        assert [order for order in self.take(Tick()) if not isinstance(order, Emit)] == [WriteTerm(1)]
        self.take(TermWritten(1))
        for actor in (ONE, TWO):
            self.hear(actor, m.Join(actor))
        for actor in (ONE, TWO):
            self.report(actor)
        assert self.core.phase is Phase.OPEN

    def take(self, event: CoordinatorInput) -> list[object]:
        self.now += 0.001
        return list(self.core.handle(event, self.now))

    def hear(self, actor: Actor, message: m.Message) -> list[object]:
        return self.take(Received(actor, message))

    def report(self, actor: Actor, prepared: m.Prepared | None = None, sequence: int | None = None) -> list[object]:
        if sequence is None:
            self.reported[actor] += 1
            sequence = self.reported[actor]
        done = 0 if prepared is None else 3
        status = m.Status(actor, StageIndex(0), 0, PASS, (0,), done, prepared, sequence=sequence)
        return self.hear(actor, status)


def test_a_microbatch_that_fails_on_two_peers_is_tried_again_and_stops_nobody() -> None:
    coordinator = Coordinator()
    failed = m.Failed(PASS, Microbatch(1), "out of memory")
    orders = coordinator.hear(TWO, failed) + coordinator.hear(ONE, failed)
    assert not [a for a in orders if isinstance(a, Stop) or (isinstance(a, Send) and isinstance(a.message, m.Halt))]
    assert [a.term for a in orders if isinstance(a, WriteTerm)] == [2]


def test_a_status_that_comes_late_says_nothing_new() -> None:
    coordinator = Coordinator()
    prepared = m.Prepared(ATTEMPT, "d", 1.0, 1.0)
    coordinator.report(ONE, prepared, sequence=8)
    coordinator.report(ONE, None, sequence=7)
    member = coordinator.core.members.get(ONE)
    assert member is not None and member.prepared == prepared and member.status is not None and member.status.done == 3
    coordinator.report(ONE, None, sequence=8)
    assert member.status.done == 3, "nor one that comes twice"
    coordinator.report(ONE, None, sequence=9)
    assert member.status.done == 0


def test_nobody_gets_the_same_tokens_for_ever() -> None:
    """Each answer takes the uplink of the coordinator."""
    coordinator = Coordinator()
    keys = tuple(FrameKey(PASS, 0, Direction.FORWARD, Microbatch(number)) for number in range(2))
    fed: Counter[Actor] = Counter()
    for actor in (ONE, TWO):
        for _ in range(MOST):
            fed.update(a.to for a in coordinator.hear(actor, m.Want(keys * 3)) if isinstance(a, Feed))
    assert set(fed) == {ONE, TWO} and max(fed.values()) <= MOST


def test_a_late_join_does_not_take_away_a_state() -> None:
    coordinator = Coordinator()
    coordinator.hear(ONE, m.Join(ONE, sequence=0))
    member = coordinator.core.members.get(ONE)
    assert member is not None and member.version == 0
    coordinator.hear(ONE, m.Join(ONE, sequence=5))
    assert member.version is None


def test_reports_of_a_new_incarnation_are_counted_from_the_start() -> None:
    coordinator = Coordinator()
    coordinator.report(ONE, None, sequence=100)
    again = Actor("one", 2)
    coordinator.hear(again, m.Join(again, capacity=3.0, sequence=1))
    assert coordinator.core.members.get(ONE) is None
    member = coordinator.core.members.get(again)
    assert member is not None and member.introduced and member.capacity == 3.0


def test_what_comes_after_the_outcome_of_a_pass_changes_nothing() -> None:
    coordinator = Coordinator()
    prepared = m.Prepared(ATTEMPT, "d", 1.0, 1.0)
    orders = [order for actor in (ONE, TWO) for order in coordinator.hear(actor, prepared)]
    assert [type(a) for a in orders].count(WriteRecord) == 1 and coordinator.core.phase is Phase.DECIDING
    assert not [a for a in coordinator.hear(TWO, m.Failed(PASS, None, "late")) if isinstance(a, Send)]
    assert not [a for a in coordinator.hear(TWO, prepared) if isinstance(a, WriteRecord)]


@pytest.mark.parametrize(
    "lie", [{"squared_norm": 1e30}, {"loss_sum": 0.0}, {"finite": False}, {"receipt": m.Receipt()}]
)
def test_replicas_must_agree_about_more_than_the_digest(lie: dict[str, Any]) -> None:
    coordinator = Coordinator()
    prepared = m.Prepared(ATTEMPT, "d", 1.0, 1.0)
    orders = coordinator.hear(ONE, replace(prepared, **lie)) + coordinator.hear(TWO, prepared)
    assert not [a for a in orders if isinstance(a, WriteRecord)]
    assert [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Amend)], "a new attempt"


def test_gradients_that_are_not_finite_agree() -> None:
    coordinator = Coordinator()
    prepared = m.Prepared(ATTEMPT, "d", math.nan, math.nan, finite=False)
    orders = coordinator.hear(ONE, prepared) + coordinator.hear(TWO, prepared)
    assert not [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Amend)]


def test_nobody_is_blamed_for_the_time_in_which_the_coordinator_stood_still() -> None:
    coordinator = Coordinator()
    budget = coordinator.core.settings.step_budget_s
    coordinator.now += 20 * budget
    orders = coordinator.take(Tick())  # what peers have said meanwhile is not read yet
    assert not [a for a in orders if isinstance(a, Send) and isinstance(a.message, m.Fenced)]
    assert coordinator.core.phase is Phase.OPEN and len(coordinator.core.members) == 2
    for _ in range(int(2 * budget / coordinator.core.settings.heartbeat_s)):
        coordinator.now += coordinator.core.settings.heartbeat_s
        coordinator.take(Tick())
    assert len(coordinator.core.members) < 2, "who is silent from then on is"


@pytest.mark.parametrize("transferring", [True, False])
def test_whose_words_wait_behind_a_checkpoint_on_its_line_is_not_silent(transferring: bool) -> None:
    coordinator = Coordinator()
    beat, lost = coordinator.core.settings.heartbeat_s, []
    for _ in range(int(coordinator.core.settings.step_budget_s / 3 / beat)):
        coordinator.now += beat
        actions = coordinator.report(ONE)
        if transferring:
            actions += coordinator.take(Transferring(TWO))
        actions += coordinator.take(Tick())
        lost += [a.event.actor for a in actions if isinstance(a, Emit) and isinstance(a.event, PeerLost)]
    assert lost == ([] if transferring else [str(TWO)])


def _reduce(
    coordinator: Coordinator, seconds: float, *progress: int, awaited: dict[Actor, tuple[Actor, ...]] | None = None
) -> list[m.Amend | m.Fenced]:
    """Both have accumulated everything, and say over and over for so long how far the reduce has got."""
    orders = []
    beat = coordinator.core.settings.heartbeat_s
    for reduced in itertools.islice(itertools.cycle(progress), int(seconds / beat)):
        coordinator.now += beat
        for actor in (ONE, TWO):
            coordinator.reported[actor] += 1
            status = m.Status(
                actor,
                StageIndex(0),
                0,
                PASS,
                (0,),
                3,
                sequence=coordinator.reported[actor],
                reduced=reduced,
                seconds_per_microbatch=0.01,
                awaited=(awaited or {}).get(actor, ()),
            )
            orders += coordinator.hear(actor, status)
        orders += coordinator.take(Tick())
    return [a.message for a in orders if isinstance(a, Send) and isinstance(a.message, m.Amend | m.Fenced)]


def test_a_reduce_that_gets_on_is_not_stuck_however_slow() -> None:
    coordinator = Coordinator()
    budget = coordinator.core.settings.step_budget_s
    assert not _reduce(coordinator, 0.5 * budget, *range(1000)), "slow, as over a slow link"
    assert not _reduce(coordinator, 0.3 * budget, 0)
    assert _reduce(coordinator, 0.1 * budget, 0), "it stands still for a third of the budget"


@pytest.mark.parametrize(("known", "budgets"), [((ONE, TWO), 1 / 12), ((ONE,), 1 / 3)], ids=["both", "one is new"])
def test_a_reduce_may_stand_still_for_several_times_as_long_as_its_members_usually_take(
    known: tuple[Actor, ...], budgets: float
) -> None:
    coordinator = Coordinator(step_budget_s=60.0)
    for actor in known:
        member = coordinator.core.members.get(actor)
        assert member is not None
        member.reducing.add(0.2)
    assert not _reduce(coordinator, budgets * 60.0 - 1.0, 0)
    assert {order.reason for order in _reduce(coordinator, 2.0, 0) if isinstance(order, m.Amend)} == {
        "the sums are not complete in time: the stage adds up its gradients once more"
    }


def test_who_has_its_own_sums_to_compute_has_as_long_as_that_usually_takes_too() -> None:
    coordinator = Coordinator(step_budget_s=60.0)
    for actor in (ONE, TWO):
        member = coordinator.core.members.get(actor)
        assert member is not None
        member.reducing.add(0.2)
    said = {ONE: (ONE,), TWO: (ONE,)}
    assert not _reduce(coordinator, 4.0, 0, awaited=said)
    assert [type(order) for order in _reduce(coordinator, 2.0, 0, awaited=said)] == [m.Fenced, m.Amend]


def test_how_long_a_reduce_takes_is_remembered_of_each_member() -> None:
    coordinator = Coordinator()
    _reduce(coordinator, 0.3 * coordinator.core.settings.step_budget_s, *range(1000))
    for actor in (ONE, TWO):
        coordinator.hear(actor, m.Prepared(ATTEMPT, "d", 1.0, 1.0))
    taken = [member.reducing.quantile(0.5) for member in coordinator.core.members]
    assert taken == pytest.approx([0.3 * coordinator.core.settings.step_budget_s] * 2, rel=0.3)


@pytest.mark.parametrize(("waits", "guilty"), [(ONE, TWO), (TWO, ONE)])
def test_a_reduce_that_gets_on_for_ever_goes_on_without_whom_the_others_wait_for(waits: Actor, guilty: Actor) -> None:
    coordinator = Coordinator()
    budget = coordinator.core.settings.step_budget_s
    said = {waits: (guilty, guilty, Actor("nobody", 1))}
    assert not _reduce(coordinator, 0.95 * budget, *range(1000), awaited=said)
    _reduce(coordinator, 0.15 * budget, *range(1000, 2000), awaited=said)
    assert coordinator.core.phase is Phase.OPEN and coordinator.core.open_pass is not None, "the step is not given up"
    assert coordinator.core.open_pass.pass_state.tables[0].roster == (waits,)


def test_who_says_that_a_reduce_waits_for_its_own_computing_is_not_waited_for_long() -> None:
    """By what the two say of each other it could be either: a black hole that computes nothing waits for sums too."""
    coordinator = Coordinator()
    budget = coordinator.core.settings.step_budget_s
    said = {ONE: (ONE,), TWO: (ONE,)}
    assert not _reduce(coordinator, 0.1 * budget, 0, awaited=said)
    orders = _reduce(coordinator, 0.1 * budget, 0, awaited=said)
    assert coordinator.core.open_pass is not None
    assert [type(order) for order in orders] == [m.Fenced, m.Amend]
    assert coordinator.core.open_pass.pass_state.tables[0].roster == (TWO,)


def test_who_computes_for_a_reduce_and_gets_on_is_left_alone() -> None:
    coordinator = Coordinator()
    budget = coordinator.core.settings.step_budget_s
    assert not _reduce(coordinator, 0.6 * budget, *range(1000), awaited={ONE: (ONE,), TWO: (ONE,)})


def test_what_is_asked_for_again_and_again_is_no_progress_of_a_reduce() -> None:
    coordinator = Coordinator()
    assert _reduce(coordinator, 0.4 * coordinator.core.settings.step_budget_s, 1, 0)


def test_who_had_a_part_in_a_decided_step_is_no_newcomer_any_more() -> None:
    coordinator = Coordinator()
    assert not any(member.has_counted for member in coordinator.core.members)
    prepared = m.Prepared(ATTEMPT, "d", 1.0, 1.0)
    orders = [order for actor in (ONE, TWO) for order in coordinator.hear(actor, prepared)]
    (write,) = [order for order in orders if isinstance(order, WriteRecord)]
    coordinator.take(RecordWritten(write.decision))
    assert all(member.has_counted for member in coordinator.core.members)


def test_of_two_copies_that_differ_the_other_is_fetched_when_the_first_cannot_be() -> None:
    settings = small_settings(stages=1, microbatches=2, steps=1, replicas=2)
    history, members, out = History(Term(1), None, None, version=1), Members(), Outbox(ME)
    checkpoints = Checkpoints(settings, history, members, Doubts(), KeptBack(), out)
    fetched = []
    for sequence, now in enumerate((0.0, settings.step_budget_s, 2 * settings.step_budget_s)):
        for actor, digest in ((ONE, "right"), (TWO, "lie")):
            member = members.get(actor) or members.add(actor, now)
            said = {"checkpoint_version": 1, "checkpoint_digest": digest, "sequence": sequence}
            status = m.Status(actor, StageIndex(0), 1, **said)  # type: ignore[arg-type]
            member.report(status, 1)
            checkpoints.note(member, status, now)
        fetched += [order.digests for order in out.take() if isinstance(order, CollectCheckpoint)]
    assert fetched == [("right",), ("lie",)]


def test_several_checkpoints_in_a_row_that_nobody_saves_are_reported_once() -> None:
    """A peer whose disk is full trains on. Without a word of it, the organiser would lose all steps since then."""
    settings = small_settings(stages=1, microbatches=2, steps=20, replicas=1, checkpoint_every=2)
    history, members, out = History(Term(1), None, None, version=2), Members(), Outbox(ME)
    history.stored(2, Term(1))
    member = members.add(ONE, 0.0)
    checkpoints = Checkpoints(settings, history, members, Doubts(), KeptBack(), out)
    tables: Any = SimpleNamespace(tables=[m.StageTable(0, (ONE,), (0, 0))])
    status = m.Status(ONE, StageIndex(0), 1, sequence=1)

    def reported(version: int, now: float) -> list[CheckpointsMissing]:
        history.version = version
        checkpoints.decided(version, tables, frozenset(), now=now)
        checkpoints.note(member, status, now)
        return [
            each.event for each in out.take() if isinstance(each, Emit) and isinstance(each.event, CheckpointsMissing)
        ]

    budget = settings.step_budget_s
    assert [reported(version, 0.0) for version in (2, 4, 6, 8)] == [[], [], [], []]
    assert reported(10, 3 * budget) == [
        CheckpointsMissing(2, 10, "checkpoint 8 of stage 0 is not archived: none of its replicas has saved it")
    ]
    assert reported(12, 4 * budget) == reported(14, 9 * budget) == []
    history.stored(14, Term(1))
    assert [reported(version, 20 * budget) for version in (16, 18, 20)] == [[], [], []]


def test_copies_of_one_persons_devices_alone_are_not_all_that_counts() -> None:
    """An audit has left out the others, who fetch the sums of the next step while these decide it."""
    settings = small_settings(stages=1, microbatches=2, steps=1, replicas=4)
    history, members, out = History(Term(1), None, None, version=1), Members(), Outbox(ME)
    actors = [Actor(name, 1) for name in ("bad", "worse", "one", "two")]
    members.people.learn([Device("same" if n < 2 else actor.peer, 2, actor.peer) for n, actor in enumerate(actors)])
    for actor in actors:
        members.add(actor, 0.0)
        member = members.get(actor)
        assert member is not None
        member.report(m.Status(actor, StageIndex(0), 1, sequence=0), 1)
        member.has_worked = True
    checkpoints = Checkpoints(settings, history, members, Doubts(), KeptBack(), out)
    makers = SimpleNamespace(tables=[m.StageTable(0, tuple(actors[:2]), (0, 1))])
    checkpoints.decided(1, makers, frozenset(), now=0.0)  # type: ignore[arg-type]
    for actor in actors:
        member = members.get(actor)
        assert member is not None
        digest = "right" if actor.peer in ("one", "two") else "lie"
        status = m.Status(actor, StageIndex(0), 1, checkpoint_version=1, checkpoint_digest=digest, sequence=1)
        checkpoints.note(member, status, 0.0)
    assert [order.digests for order in out.take() if isinstance(order, CollectCheckpoint)] == [("right",)]


def test_a_copy_waits_for_no_replica_that_has_no_part_in_the_next_steps() -> None:
    """One is paused, another one loads a state for the first time."""
    settings = small_settings(stages=1, microbatches=2, steps=1, replicas=3)
    history, members, out = History(Term(1), None, None, version=1), Members(), Outbox(ME)
    maker, hot, new = actors = [Actor(name, 1) for name in ("maker", "hot", "new")]
    for actor in actors:
        member = members.add(actor, 0.0)
        member.report(m.Status(actor, StageIndex(0), 1, sequence=0), 1)
        member.has_worked = actor != new
    paused = members.get(hot)
    assert paused is not None
    paused.pause("83 °C (limit 80)", 0.0)
    assert _ordered_when_saved(maker, settings, history, members, out) == [("d",)]


@pytest.mark.parametrize(("behind", "waits"), [(1, True), (2, True), (3, False), (9, False)])
def test_a_copy_waits_only_for_a_replica_that_will_soon_have_it_by_its_own_work(behind: int, waits: bool) -> None:
    """A replica fell behind on a lossy link. It would have fetched the state of the other one for half a minute."""
    settings = small_settings(stages=1, microbatches=2, steps=10, replicas=2)
    history, members, out = History(Term(1), None, None, version=10), Members(), Outbox(ME)
    maker, late = Actor("maker", 1), Actor("late", 1)
    for actor, version in ((maker, 9), (late, 10 - behind)):
        member = members.add(actor, 0.0)
        member.report(m.Status(actor, StageIndex(0), version, sequence=0), 1)
        member.has_worked = True
    assert _ordered_when_saved(maker, settings, history, members, out) == ([] if waits else [("d",)])


def _ordered_when_saved(
    maker: Actor, settings: Settings, history: History, members: Members, out: Outbox
) -> list[tuple[str, ...]]:
    """The digests of the checkpoints that are ordered when the only maker of the newest version has saved it."""
    checkpoints, version = Checkpoints(settings, history, members, Doubts(), KeptBack(), out), history.version
    tables = SimpleNamespace(tables=[m.StageTable(0, (maker,), (0, 0))])
    checkpoints.decided(version, tables, frozenset(), now=0.0)  # type: ignore[arg-type]
    saved = m.Status(maker, StageIndex(0), version, checkpoint_version=version, checkpoint_digest="d", sequence=1)
    member = members.get(maker)
    assert member is not None
    checkpoints.note(member, saved, 0.0)
    return [order.digests for order in out.take() if isinstance(order, CollectCheckpoint)]


def test_a_stage_without_a_peer_waits_for_nobody_when_all_have_come_and_are_elsewhere() -> None:
    """A coordinator that was killed places a peer before another says that it holds that stage."""
    settings = small_settings(stages=2, microbatches=2, steps=2, replicas=1)
    core, now = CoordinatorCore(ME, settings, 0, None, None), 0.0
    core.handle(Tick(), now)
    core.handle(TermWritten(1), now)
    core.handle(Received(TWO, m.Join(TWO)), now)
    moved: list[PeerMoved] = []
    for number in range(1, 100):
        now += settings.recruit_after_s / 10
        inputs = [Received(each, m.Status(each, StageIndex(0), 0, sequence=number)) for each in (ONE, TWO)]
        orders = [order for event in (*inputs, Tick()) for order in core.handle(event, now)]
        moved += [order.event for order in orders if isinstance(order, Emit) and isinstance(order.event, PeerMoved)]
        if moved:
            break
    assert now < settings.start_timeout_s / 2, "much sooner than others would be waited for"
    assert [(each.source, each.stage) for each in moved] == [(0, 1)]
