"""Failures that do not depend on who computes: the run says why it waits, or skips the step. None ends it."""

from __future__ import annotations

import itertools
import math

import pytest

from swarm.events import RunPaused
from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import CoordinatorInput, RecordWritten, TermWritten, WriteRecord, WriteTerm
from swarm.protocol.coordinator.membership.failure_history import MOST_REST_S
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex
from swarm.protocol.io import Emit, Received, Send, Tick
from swarm.simulation.runs.plan import small_settings

ME = Actor("coordinator", 0)
ONE, TWO, THREE, FOUR, FIVE = (Actor(name, 1) for name in ("one", "two", "three", "four", "five"))
STAGE = StageIndex(0)


class Run:
    """One stage with these replicas, all of which hold the version and say so at every heartbeat.

    `last`: peers of a second stage.
    """

    def __init__(self, *peers: Actor, last: tuple[Actor, ...] = ()) -> None:
        stages = 2 if last else 1
        self.last = last
        settings = small_settings(stages=stages, microbatches=2, steps=2, replicas=max(len(peers), len(last)))
        peers = (*peers, *last)
        self.core = CoordinatorCore(ME, settings, 0, None, None)
        self.peers = peers
        self.now = 0.0
        self.sequence = 0
        self.paused: list[str] = []
        self.halts: list[str] = []
        self.openings: list[m.Open] = []
        self.decisions: list[m.Decision] = []
        self.take(Tick())
        for actor in peers:
            self.hear(actor, m.Join(actor, self.stage_of(actor)))
        self.until_open()

    def stage_of(self, actor: Actor) -> StageIndex:
        return StageIndex(1) if actor in self.last else STAGE

    @property
    def pass_id(self) -> PassId:
        assert self.core.open_pass is not None
        return self.core.open_pass.pass_state.pass_id

    def take(self, event: CoordinatorInput) -> None:
        """Terms and records are on disk at once."""
        self.now += 0.001
        for order in self.core.handle(event, self.now):
            match order:
                case WriteTerm(term):
                    self.take(TermWritten(term))
                case WriteRecord(decision):
                    self.decisions.append(decision)
                    self.take(RecordWritten(decision))
                case Send(_, m.Halt(reason)):
                    self.halts.append(reason)
                case Send(_, m.Open() as opening):
                    self.openings.append(opening)
                case Emit(RunPaused(reason)):
                    self.paused.append(reason)

    def hear(self, actor: Actor, message: m.Message) -> None:
        self.take(Received(actor, message))

    def until_open(self) -> float:
        """Seconds until a pass is open."""
        since = self.now
        while self.core.phase is not Phase.OPEN:
            assert self.now - since < 1000.0, "no pass opens"
            self.now += self.core.settings.heartbeat_s
            for actor in self.peers:
                self.sequence += 1
                self.hear(
                    actor, m.Status(actor, self.stage_of(actor), self.core.history.version, sequence=self.sequence)
                )
        return self.now - since

    def fail(self, actor: Actor, microbatch: int | None, reason: str = "no memory", nonfinite: bool = False) -> None:
        mine = None if microbatch is None else Microbatch(microbatch)
        self.hear(actor, m.Failed(self.pass_id, mine, reason, nonfinite))

    def prepare(self, *actors: Actor, finite: bool = True) -> None:
        assert self.core.open_pass is not None
        attempt = Attempt(self.pass_id, STAGE, self.core.open_pass.pass_state.tables[0].number)
        norm = 1.0 if finite else math.nan
        for actor in actors:
            self.hear(actor, m.Prepared(attempt, "d", norm, norm, finite))


@pytest.mark.parametrize("microbatch", [None, 0])
def test_a_lone_replica_that_fails_again_and_again_makes_the_run_wait_and_say_why(microbatch: int | None) -> None:
    run, rests = Run(ONE), []
    for attempt in range(16):
        run.fail(ONE, microbatch, f"no memory, {attempt}")
        rests.append(run.until_open())
    heartbeat = run.core.settings.heartbeat_s
    assert not run.halts and not run.decisions
    assert rests[0] < 2 * heartbeat, "the first time it goes on at once"
    growing = [rest for rest in rests[1:] if rest < MOST_REST_S / 2]
    assert all(later > 1.5 * sooner for sooner, later in itertools.pairwise(growing)), rests
    assert MOST_REST_S <= rests[-1] < MOST_REST_S + 2 * heartbeat, "not for ever"
    last = run.paused[-1]
    what = "" if microbatch is None else " on microbatch 0"
    assert last.startswith("step 0 has failed 16 times with the present peers.")
    assert f"one of stage 0 failed{what}: no memory, 15" in last and "add a peer for stage 0" in last
    run.prepare(ONE)
    assert len(run.decisions) == 1


def test_a_step_that_fails_at_a_lone_peer_is_done_again_with_another_sender_and_then_with_all() -> None:
    """One peer's word leaves nobody out for longer."""
    run = Run(ONE, last=(TWO, THREE))
    assert run.core.open_pass is not None
    sender = run.core.open_pass.pass_state.tables[1].assignee(0)
    run.fail(ONE, 0)
    run.until_open()
    (other,) = {TWO, THREE} - {sender}
    assert run.core.open_pass.pass_state.tables[1].roster == (other,)
    run.fail(ONE, 0)
    run.until_open()
    assert set(run.core.open_pass.pass_state.tables[1].roster) == {TWO, THREE}
    assert not run.halts


def test_what_two_fail_on_is_taken_from_its_sender_if_that_one_has_a_sibling() -> None:
    run = Run(ONE, FOUR, FIVE, last=(TWO, THREE))
    assert run.core.open_pass is not None
    pass_state = run.core.open_pass.pass_state
    sender, before = pass_state.tables[1].assignee(0), pass_state.tables[0].assignee(0)
    run.fail(before, 0)
    assert sender in pass_state.tables[1].roster, "one alone may be wrong"
    run.fail(pass_state.tables[0].assignee(0), 0)
    assert sender not in pass_state.tables[1].roster and len(pass_state.tables[0].roster) == 1
    assert run.core.open_pass.pass_state is pass_state, "the same attempt goes on"


def test_who_comes_is_not_waited_with() -> None:
    run = Run(ONE)
    for _ in range(12):
        run.fail(ONE, 0)
        rest = run.until_open()
    assert rest > 100.0
    run.fail(ONE, 0)
    run.peers = (ONE, TWO)
    run.hear(TWO, m.Join(TWO, stage=STAGE))
    assert run.until_open() < 2.0
    assert run.core.open_pass is not None and TWO in run.core.open_pass.pass_state.tables[0].roster


def test_a_peer_that_fences_itself_is_one_that_failed() -> None:
    run, rests = Run(ONE), []
    for _ in range(8):
        run.sequence += 1
        run.hear(ONE, m.Status(ONE, STAGE, 0, run.pass_id, (0,), fenced=True, sequence=run.sequence))
        rests.append(run.until_open())
    assert not run.halts and "it fenced itself" in run.paused[-1] and rests[-1] > 20 * rests[0]


def test_failures_are_counted_for_one_step() -> None:
    run = Run(ONE)
    for step in range(2):
        rests = []
        for _ in range(8):
            run.fail(ONE, 0)
            rests.append(run.until_open())
        assert rests[0] < 1.0 < rests[-1]
        run.prepare(ONE)
        assert len(run.decisions) == step + 1
        if step == 0:
            run.until_open()


def test_deaths_are_no_failures() -> None:
    run = Run(ONE)
    for life in range(2, 16):
        run.peers = (Actor("one", life),)
        run.hear(run.peers[0], m.Join(run.peers[0]))
        run.until_open()
    assert not run.halts and not [reason for reason in run.paused if "failed" in reason]


def test_what_is_not_finite_on_two_peers_is_tried_once_more_and_then_skipped() -> None:
    run = Run(ONE, TWO)
    run.fail(ONE, 0, "not finite", nonfinite=True)
    assert run.core.phase is Phase.OPEN, "the sibling may find it finite"
    run.openings.clear()
    run.fail(TWO, 0, "not finite", nonfinite=True)
    assert not run.halts
    run.until_open()
    assert {opening.nonfinite for opening in run.openings} == {True}
    run.openings.clear()
    run.prepare(ONE, TWO, finite=False)
    assert [decision.skip for decision in run.decisions] == [True]
    run.until_open()
    assert {opening.nonfinite for opening in run.openings} == {False}, "the next step is another one"


def test_what_is_not_finite_on_the_only_peer_is_skipped_too() -> None:
    run = Run(ONE)
    run.fail(ONE, 0, "not finite", nonfinite=True)
    run.until_open()
    assert run.openings[-1].nonfinite
    run.prepare(ONE, finite=False)
    assert run.decisions[0].skip and not run.halts


def test_what_is_not_finite_on_one_peer_alone_is_that_peers_fault() -> None:
    run = Run(ONE, TWO)
    run.fail(ONE, 0, "not finite", nonfinite=True)
    run.prepare(TWO)
    assert [decision.skip for decision in run.decisions] == [False]


def test_a_step_that_may_be_skipped_is_not_if_it_is_finite_after_all() -> None:
    run = Run(ONE)
    run.fail(ONE, 0, "not finite", nonfinite=True)
    run.until_open()
    run.prepare(ONE)
    assert [decision.skip for decision in run.decisions] == [False]


def test_what_is_not_finite_is_no_excuse_where_it_could_have_been_sent() -> None:
    run = Run(ONE)
    for _ in range(8):
        run.fail(ONE, 0, "not finite", nonfinite=True)
        run.until_open()
    assert not run.halts and not run.decisions and "not finite" in run.paused[-1]
