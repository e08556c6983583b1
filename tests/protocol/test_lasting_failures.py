"""Failures that do not depend on who computes: they end the run, or skip the step, and are not tried for ever."""

from __future__ import annotations

import itertools
import math

import pytest

from swarm.events import RunPaused
from swarm.protocol import messages as m
from swarm.protocol.actions import (
    CoordinatorInput,
    Emit,
    Received,
    RecordWritten,
    Send,
    TermWritten,
    Tick,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator import CoordinatorCore, Phase
from swarm.protocol.experience import MAX_FAILED
from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex
from swarm.simulation.scenario import small_settings

ME = Actor("coordinator", 0)
ONE, TWO = Actor("one", 1), Actor("two", 1)
STAGE = StageIndex(0)


class Run:
    """One stage with these replicas, all of which hold the version and say so at every heartbeat."""

    def __init__(self, *peers: Actor) -> None:
        settings = small_settings(stages=1, microbatches=2, steps=2, replicas=len(peers))
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
            self.hear(actor, m.Join(actor))
        self.until_open()

    @property
    def pass_id(self) -> PassId:
        assert self.core.open_pass is not None
        return self.core.open_pass.ledger.pass_id

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
        """Seconds until a pass is open, or the run is over."""
        since = self.now
        while self.core.phase not in (Phase.OPEN, Phase.FINISHED):
            assert self.now - since < 1000.0, "no pass opens"
            self.now += self.core.settings.heartbeat_s
            for actor in self.peers:
                self.sequence += 1
                self.hear(actor, m.Status(actor, STAGE, self.core.history.version, sequence=self.sequence))
        return self.now - since

    def fail(self, actor: Actor, microbatch: int | None, reason: str = "no memory", nonfinite: bool = False) -> None:
        mine = None if microbatch is None else Microbatch(microbatch)
        self.hear(actor, m.Failed(self.pass_id, mine, reason, nonfinite))

    def prepare(self, *actors: Actor, finite: bool = True) -> None:
        assert self.core.open_pass is not None
        attempt = Attempt(self.pass_id, STAGE, self.core.open_pass.ledger.tables[0].number)
        norm = 1.0 if finite else math.nan
        for actor in actors:
            self.hear(actor, m.Prepared(attempt, "d", norm, norm, finite))


@pytest.mark.parametrize("microbatch", [None, 0])
def test_a_lone_replica_that_fails_again_and_again_ends_the_run(microbatch: int | None) -> None:
    run, rests = Run(ONE), []
    for attempt in range(MAX_FAILED):
        assert not run.halts, f"after {attempt} failures"
        run.fail(ONE, microbatch, f"no memory, {attempt}")
        rests.append(run.until_open())
    assert run.core.phase is Phase.FINISHED
    assert f"step 0 was tried {MAX_FAILED} times and failed each time: " in run.halts[0]
    assert f"no memory, {MAX_FAILED - 1}" in run.halts[0], "the last reason"
    heartbeat = run.core.settings.heartbeat_s
    assert rests[0] < 2 * heartbeat, "the first time it goes on at once"
    assert all(later > 1.5 * sooner for sooner, later in itertools.pairwise(rests[1:-1])), rests
    assert rests[-2] > 50 * heartbeat
    waits = [f"step 0 failed {times} times: the next attempt waits" for times in range(2, MAX_FAILED)]
    assert [reason for reason in run.paused if "waits" in reason] == waits


def test_two_replicas_that_fail_one_without_and_one_with_a_microbatch_end_the_run() -> None:
    """Such as when a sum overflows where parts are added."""
    run = Run(ONE, TWO)
    for _ in range(MAX_FAILED):
        run.fail(ONE, None, "SumOverflow")
        if run.core.phase is Phase.OPEN:  # the first time; then TWO is on probation, and ONE alone
            run.fail(TWO, 1, "SumOverflow")
        run.until_open()
    assert run.core.phase is Phase.FINISHED and "SumOverflow" in run.halts[0]


def test_a_peer_that_fences_itself_is_one_that_failed() -> None:
    run = Run(ONE)
    for _ in range(MAX_FAILED):
        run.sequence += 1
        run.hear(ONE, m.Status(ONE, STAGE, 0, run.pass_id, (0,), fenced=True, sequence=run.sequence))
        run.until_open()
    assert run.core.phase is Phase.FINISHED and "it fenced itself" in run.halts[0]


def test_failures_are_counted_for_one_step() -> None:
    run = Run(ONE)
    for step in range(2):
        for _ in range(MAX_FAILED - 1):
            run.fail(ONE, 0)
            run.until_open()
        run.prepare(ONE)
        assert len(run.decisions) == step + 1 and not run.halts
        if step == 0:
            run.until_open()


def test_deaths_are_no_failures() -> None:
    run = Run(ONE)
    for life in range(2, 2 * MAX_FAILED):
        run.peers = (Actor("one", life),)
        run.hear(run.peers[0], m.Join(run.peers[0]))
        run.until_open()
    assert not run.halts and run.core.phase is Phase.OPEN


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
    for _ in range(MAX_FAILED + 1):
        run.fail(ONE, 0, "not finite", nonfinite=True)
        run.until_open()
    assert run.core.phase is Phase.FINISHED and run.halts
