"""The start of a run whose version 0 is imported: it comes from the archive or a replica, and nobody makes it."""

from __future__ import annotations

import dataclasses

import pytest

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, StageIndex, Term
from swarm.protocol.io import LinkLost, Received, Send, Tick
from swarm.protocol.settings import Settings
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import small_settings
from swarm.simulation.runs.runner import Run, run_plan, run_seed
from swarm.simulation.runs.scenario import plan_of

ME, ONE, TWO, THREE = Actor("coordinator", 0), Actor("one", 1), Actor("two", 1), Actor("three", 1)
IMPORTED = small_settings(stages=1, microbatches=2, steps=2, replicas=2, imported=True)


class Coordinator:
    def __init__(self, settings: Settings, archived: int | None) -> None:
        self.core = CoordinatorCore(ME, settings, 0, None, archived)
        self.now = 0.0
        self.sequence = 0
        self.core.handle(Tick(), 0.0)
        self.take(TermWritten(1))

    def take(self, event: object, after: float = 0.001) -> list[m.Assign]:
        """Who is told to take up what."""
        self.now += after
        orders = self.core.handle(event, self.now)  # type: ignore[arg-type]
        return [a.message for a in orders if isinstance(a, Send) and isinstance(a.message, m.Assign)]

    def join(self, actor: Actor) -> list[m.Assign]:
        return self.take(Received(actor, m.Join(actor)))

    def hold(self, actor: Actor) -> list[m.Assign]:
        self.sequence += 1
        return self.take(Received(actor, m.Status(actor, StageIndex(0), 0, sequence=self.sequence)))


def test_the_first_comes_from_the_archive_and_later_ones_from_a_replica() -> None:
    coordinator = Coordinator(IMPORTED, archived=0)
    assert coordinator.join(ONE) == [m.Assign(Term(1), StageIndex(0), 0, archive=ME)]
    coordinator.hold(ONE)
    assert coordinator.join(TWO) == [m.Assign(Term(1), StageIndex(0), 0, (m.Donor(ONE, 0),))]


def test_the_last_replica_at_version_0_is_replaced_from_the_archive() -> None:
    coordinator = Coordinator(IMPORTED, archived=0)
    coordinator.join(ONE)
    coordinator.hold(ONE)
    coordinator.take(LinkLost(ONE))
    coordinator.take(Tick(), after=1.0)
    assert coordinator.join(THREE) == [m.Assign(Term(1), StageIndex(0), 0, archive=ME)]


def test_without_import_everybody_makes_version_0() -> None:
    coordinator = Coordinator(dataclasses.replace(IMPORTED, imported=False), archived=None)
    for actor in (ONE, TWO):
        assert coordinator.join(actor) == [m.Assign(Term(1), StageIndex(0), 0)]
        coordinator.hold(actor)


def test_a_run_that_begins_is_not_taken_for_one_that_is_resumed() -> None:
    """Its archive holds a version from the start; the peers are new all the same, and get the time to come."""
    coordinator = Coordinator(IMPORTED, archived=0)
    coordinator.join(ONE)
    coordinator.hold(ONE)
    coordinator.take(Tick(), after=IMPORTED.recruit_after_s + 0.1)
    coordinator.hold(ONE)
    assert coordinator.core.phase is Phase.BETWEEN, "one of two replicas, and start_timeout_s is not over"
    coordinator.join(TWO)
    coordinator.hold(TWO)
    assert coordinator.core.phase is Phase.OPEN


def test_the_simulator_notices_a_peer_that_makes_version_0() -> None:
    plan = plan_of("imported", 0)
    assert plan.settings.imported and run_seed("imported", 0).ok
    run = Run(dataclasses.replace(plan, faults=(), weather=None))
    assert run.world.coordinator is not None
    run.world.coordinator.core._placement.orders._settings = dataclasses.replace(plan.settings, imported=False)
    with pytest.raises(Violation, match="should initialise version 0, which is imported"):
        run.finish()


def test_runs_from_imported_parameters_end_right(pytestconfig: pytest.Config) -> None:
    for seed in range(200 if pytestconfig.getoption("--long") else 60):
        outcome = run_plan(plan_of("imported", seed))
        assert outcome.ok, f"seed {seed}: {outcome.invariant}: {outcome.detail}"
