"""Seeded schedules of every fault, a crash at every event, and that any of it replays exactly."""

import dataclasses
import hashlib
import multiprocessing
import os
import subprocess
import sys

import pytest

from swarm.simulation.faults.faults import CELLS, KINDS, PHASES, ROLES, Cell, nonsense
from swarm.simulation.runs.coverage import ENOUGH_SEEDS, Coverage
from swarm.simulation.runs.plan import Plan
from swarm.simulation.runs.runner import Run, crash_plan, crash_points, run_crash, run_plan, run_seed, run_seeds
from swarm.simulation.runs.scenario import SCENARIOS, plan_of
from swarm.simulation.runs.world import Process
from swarm.simulation.toy.sim_peer import SimPeer

JOBS = min(2, os.cpu_count() or 1)


def struck_in(seeds: int) -> Coverage:
    """What befell the first so many runs, each of which ended right."""
    coverage, broken = Coverage(), []
    for outcome in run_seeds("mixed", range(seeds), JOBS):
        coverage.add(outcome.struck)
        if not outcome.ok:
            broken.append(f"seed {outcome.seed}: {outcome.invariant}: {outcome.detail}")
    assert not broken, "\n".join(broken)
    return coverage


def test_schedules_with_each_fault_planned_once_keep_every_invariant() -> None:
    coverage = struck_in(len(CELLS))
    assert len(coverage.empty()) < len(CELLS) // 10, coverage.table()


@pytest.mark.long
def test_enough_seeded_schedules_keep_every_invariant_and_cover_every_cell() -> None:
    coverage = struck_in(ENOUGH_SEEDS)
    assert not coverage.empty(), coverage.table()


def test_a_crash_of_every_actor_at_every_event_of_a_step_ends_right(pytestconfig: pytest.Config) -> None:
    """Two or three of the nine ways to crash at each event, in turn; with --long all nine."""
    points = crash_points(crash_plan())
    if not pytestconfig.getoption("--long"):
        points = points[::4]
    assert {point.victim for point in points} == {"coord", "peer1", "peer2", "peer3", "peer4", ""}
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        outcomes = pool.map(run_crash, points, chunksize=50)
    broken = [
        f"{point}: {outcome.invariant}: {outcome.detail}"
        for point, outcome in zip(points, outcomes, strict=True)
        if not outcome.ok
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_runs(scenario: str, pytestconfig: pytest.Config) -> None:
    for seed in range(10 if pytestconfig.getoption("--long") else 5):
        outcome = run_seed(scenario, seed)
        assert outcome.ok, f"{scenario} seed {seed}: {outcome.invariant}: {outcome.detail}"


def test_a_late_peer_may_apply_a_decision_that_a_rollback_has_undone() -> None:
    """The step is computed again with other key frames, so both decisions are right, but their sums differ."""
    outcome = run_seed("storm", 330354)
    assert outcome.ok and outcome.rollbacks, f"{outcome.invariant}: {outcome.detail}"


def test_a_calm_run_is_not_disturbed() -> None:
    outcome = run_seed("calm", 3, tracing=True)
    assert outcome.ok and not outcome.struck and not outcome.rollbacks
    assert not [line for line in outcome.trace if "PeerFenced" in line or "StepAborted" in line]


def test_a_seed_replays_exactly_in_a_process_with_other_hashes() -> None:
    program = (
        "import hashlib; from swarm.simulation.runs.runner import run_seed; h = hashlib.sha256()\n"
        "for s in range(20): h.update('\\n'.join(run_seed('mixed', s, tracing=True).trace).encode())\n"
        "print(h.hexdigest())"
    )
    here = hashlib.sha256()
    for seed in range(20):
        here.update("\n".join(run_seed("mixed", seed, tracing=True).trace).encode())
    for salt in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert run.stdout.strip() == here.hexdigest()


def test_tracing_changes_nothing() -> None:
    for seed in range(20):
        plain, traced = run_seed("mixed", seed), run_seed("mixed", seed, tracing=True)
        assert (plain.events, plain.virtual_s, plain.struck) == (traced.events, traced.virtual_s, traced.struck)
        assert traced.trace and not plain.trace


def test_plans_are_functions_of_the_seed_and_walk_the_table() -> None:
    assert plan_of("mixed", 5) == plan_of("mixed", 5)
    first = {plan_of("mixed", seed).faults[0].cell for seed in range(len(CELLS))}
    assert first == set(CELLS)
    with pytest.raises(ValueError, match=r"unknown scenario 'earthquake': choose one of mixed"):
        plan_of("earthquake", 0)


def test_every_cell_makes_sense_or_has_a_reason() -> None:
    for kind in KINDS:
        for phase in PHASES:
            for role in ROLES:
                cell = Cell(kind, phase, role)
                assert (cell in CELLS) != bool(nonsense(cell))


def test_the_baseline_of_the_exhaustive_test_is_one_step_of_two_by_two() -> None:
    plan = crash_plan()
    assert (plan.settings.stages, plan.settings.replicas, plan.settings.steps) == (2, 2, 1)
    assert run_plan(plan).ok


def test_in_a_calm_run_only_first_visits_are_key_frames() -> None:
    plan = dataclasses.replace(plan_of("calm", 4), blocks=1, base_capacity=1000)
    settings = dataclasses.replace(plan.settings, stages=3, replicas=2, steps=4, microbatches=4)
    run = Run(dataclasses.replace(plan, settings=settings, speeds=(1.0,) * 6, spares=0))
    run.finish()
    decisions = run.world.watch.decisions
    assert [decisions[step].key_frames for step in range(4)] == [(15, 15), (0, 0), (0, 0), (0, 0)]


@pytest.fixture
def thinned(pytestconfig: pytest.Config) -> int:
    """Of how many crash points one is tried that `--long` tries all of."""
    return 1 if pytestconfig.getoption("--long") else 6


def survives(plan: Plan, every: int, least: int) -> None:
    """A crash at every so many of all crash points, which are at least so many times as many, ends right."""
    points = crash_points(plan)
    assert len(points) > every * least
    points = points[::every]
    for point in points:
        outcome = run_plan(plan, crash=point)
        assert outcome.ok, f"{point}: {outcome.invariant}: {outcome.detail}"


def test_a_crash_in_a_step_that_builds_on_the_one_before_ends_right(thinned: int) -> None:
    """At every 24th of all crash points, with --long at every fourth: two steps of the same samples."""
    calm = crash_plan()
    plan = dataclasses.replace(calm, settings=dataclasses.replace(calm.settings, steps=2), blocks=1, base_capacity=1000)
    survives(plan, every=4 * thinned, least=500 // thinned)


def test_a_crash_in_a_step_of_two_stages_that_share_ends_right(thinned: int) -> None:
    """At every 24th of all crash points, with --long at every fourth."""
    calm = crash_plan()
    plan = dataclasses.replace(calm, settings=dataclasses.replace(calm.settings, ends_share=True))
    survives(plan, every=4 * thinned, least=300 // thinned)


def test_a_crash_in_a_step_that_adds_what_the_one_before_has_lost_ends_right(thinned: int) -> None:
    """At every 36th of all crash points, with --long at every sixth: two steps of compressed averaging."""
    calm = crash_plan()
    plan = dataclasses.replace(calm, settings=dataclasses.replace(calm.settings, steps=2, averages_compressed=True))
    survives(plan, every=6 * thinned, least=300 // thinned)


def test_in_a_calm_run_residuals_are_empty_in_the_first_step_alone() -> None:
    plan = plan_of("calm", 4)
    settings = dataclasses.replace(plan.settings, stages=2, replicas=2, steps=4, averages_compressed=True)
    run = Run(dataclasses.replace(plan, settings=settings, speeds=(1.0,) * 4, spares=0))
    run.finish()
    decisions = run.world.watch.decisions
    for stage in (0, 1):
        outcomes = [decisions[step].outcomes[stage] for step in range(4)]
        assert [tuple(each.carried for each in o.contributions) for o in outcomes] == [(-1, -1)] + [(0, 1)] * 3


def test_a_leader_that_is_cut_off_from_the_peers_alone_makes_room() -> None:
    """For good: the others still hear it, and the swarm would wait for ever."""
    plan = dataclasses.replace(plan_of("group", 0), faults=(), weather=None, coordinators=3, spares=0)
    settings = dataclasses.replace(plan.settings, stages=2, replicas=2, steps=4)
    run = Run(dataclasses.replace(plan, settings=settings, speeds=(1.0,) * 4))
    world, first = run.world, []

    def cut(phase: str, process: Process) -> None:
        if phase == "reduce" and not first:
            assert world.coordinator is not None
            first.append(world.coordinator)
            for peer in world.alive():
                if isinstance(peer, SimPeer):
                    world.network.partition(first[0], peer, 1e6, one_way=False, noticed_after=None)

    world.on_phase = cut
    run.finish()
    assert first and world.coordinator is not first[0]
    assert len(world.watch.decisions) == 4


def joined(piece_s: float, **changes: object) -> Run:
    """Two stages of two replicas train, undisturbed; at 0.6 s another peer comes, in the third step."""
    plan = plan_of("joining", 1)
    shape = {"stages": 2, "replicas": 3, "max_replicas": 3, "microbatches": 4, "start_timeout_s": 0.05}
    settings = dataclasses.replace(plan.settings, **shape, **changes)
    quiet = dataclasses.replace(plan, settings=settings, faults=(), weather=None, spares=1, speeds=(1.0,) * 5)
    run = Run(dataclasses.replace(quiet, arrivals=(0.6,), piece_s=piece_s, spoils=0.0), tracing=True)
    run.finish()
    return run


@pytest.mark.parametrize("averages", [False, True])
def test_who_joins_makes_nobody_wait_and_catches_up_over_several_steps(averages: bool) -> None:
    run = joined(0.08, averages_compressed=averages)
    trace = run.world.trace
    assert trace is not None
    decided = [line for line in trace if "is durable" in line]
    assert len(decided) == 10
    for step, line in enumerate(decided[:-1]):
        assert f"Open 1:{step + 1} train" in line, "the next step opens with the decision"
    applied = [
        line.split("applied step ")[1].split(":")[0] for line in trace if "peer5.1" in line[:30] and "applied" in line
    ]
    assert run.world.watch.caught_up >= 3, "its download took longer than two steps"
    assert applied == [str(step) for step in range(int(applied[0]), 10)], "every step, in order"
    assert int(applied[0]) > 0, "it did not begin with version 0"
    began = next(line for line in trace if "peer5.1" in line[:30] and "BEGIN" in line)
    assert began.split("BEGIN 1:")[1].split()[0] != "9", "before the last step it takes part"


def test_a_download_that_never_ends_keeps_nobody_from_training() -> None:
    run = joined(100.0)
    assert run.world.trace is not None and not run.world.watch.caught_up
    assert not [line for line in run.world.trace if "StepAborted" in line or "PeerFenced" in line]
