"""Peers inside the run that keep others from getting on: each run ends with the answer of one machine all the same.

That it does is what the simulator's watch checks; here, what the insiders cost, and whom it is put down to.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from run_events import events_in

from swarm.events import (
    EvaluationDropped,
    Event,
    PassOpened,
    PeerExpelled,
    PeerFenced,
    RunDiverged,
    RunPaused,
    StageDoubted,
    StepAborted,
)
from swarm.manifest import DivergenceSection
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.coordinator.passes.pass_limits import WORTH_BEATS
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.simulation.faults.lie import DISTURBANCES, About, Disturbance, Lie
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run, run_seed
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.sim_peer import SimPeer

STEPS = 8


class Disturbed:
    """A run of so many stages of replicas, some of whose peers (by order of arrival) disturb the others."""

    def __init__(
        self,
        about: About,
        insiders: set[int],
        stages: int,
        replicas: int,
        seed: int = 0,
        count: int | None = None,
        skips: int = 1000,
        stage: int | None = None,
        slots: int = 0,
    ) -> None:
        """`count`: of peers; None: as many as are planned. `skips`: so many skipped steps are a divergence.

        `stage`: of the insiders only those disturb that get this one.
        """
        settings = small_settings(stages=stages, microbatches=6, steps=STEPS, replicas=replicas, evaluate_every=1)
        settings = dataclasses.replace(settings, divergence=DivergenceSection(skips=skips), slots=slots)
        count = stages * replicas if count is None else count
        lies = tuple(Lie(about, stage=stage) if peer in insiders else None for peer in range(count))
        self.run = Run(Plan("insiders", seed, settings, 0, (1.0,) * count, (), lies=lies))
        self.events = events_in(self.run)

    def of(self, kind: type[Event]) -> list:
        return [event for _, event in self.events if isinstance(event, kind)]

    @property
    def insiders(self) -> dict[str, int | None]:
        """Their stages."""
        those = [p for p in self.run.world.processes if isinstance(p, SimPeer) and p.lie is not None]
        return {p.actor.peer: p.stage for p in those}

    def evaluating_s(self) -> list[float]:
        """How long each evaluation held up the training."""
        opened = [(at, e.pass_kind) for at, e in self.events if isinstance(e, PassOpened)]
        return [later - at for (at, kind), (later, _) in itertools.pairwise(opened) if kind == "evaluate"]


@pytest.mark.parametrize(
    ("about", "seed"),
    [
        *((about, seed) for about in ("huge", "failed", "mute") for seed in range(6)),
        *((about, 0) for about in DISTURBANCES if about not in ("huge", "failed", "mute", "nan")),
    ],
)
def test_two_of_six_identities_stop_nothing_and_nobody_is_sent_away(about: Disturbance, seed: int) -> None:
    disturbed = Disturbed(about, {seed % 6, (seed + 1 + seed // 3) % 6}, 2, 3, seed)
    disturbed.run.finish()
    assert not disturbed.of(PeerExpelled)
    assert len(disturbed.run.world.watch.decisions) == STEPS


def test_no_honest_peer_leaves_a_step_because_its_only_slot_waits_for_an_idle_peer() -> None:
    """The slot of a neighbour waits for an activation or a gradient of the idle peer. Other work could begin, but there
    is no slot for it.
    """
    left_out = 0
    for seed in range(12):
        disturbed = Disturbed("lazy", {seed % 6}, 2, 3, seed, slots=1)
        disturbed.run.finish()
        left_out += len(disturbed.of(PeerFenced))
        assert {e.actor.split(".")[0] for e in disturbed.of(PeerFenced)} <= set(disturbed.insiders), seed
    assert left_out >= 12


def test_an_attempt_whose_only_peers_are_idle_ends_soon_if_others_hold_their_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of five replicas are idle, and every step is audited: in some attempts these three are the only ones, if
    audits take back all peers on probation.
    """
    everybody = lambda self, late, _: set(late) if self._failure_history.audited_by else set()  # noqa: E731
    monkeypatch.setattr(Bench, "_recalled", everybody)
    run = Run(plan_of("passes", 301172))
    events = events_in(run)
    run.finish()
    opened: dict[str, float] = {}
    took = []
    for at, event in events:
        if isinstance(event, PassOpened):
            opened[event.pass_id] = at
        elif isinstance(event, StepAborted) and event.reason.startswith("not complete"):
            took.append(at - opened[event.pass_id])
    fences = 2
    assert took and max(took) < (fences + 2) * run.plan.settings.step_budget_s


@pytest.mark.parametrize("seed", range(4))
def test_who_sends_what_overflows_is_struck_and_its_victims_are_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    struck: set[str] = set()
    strike = Probation.strike

    def noted(self: Probation, peer: str, *others) -> None:
        struck.add(peer)
        strike(self, peer, *others)

    monkeypatch.setattr(Probation, "strike", noted)
    for peer in range(4):
        struck.clear()
        disturbed = Disturbed("huge", {peer}, 2, 2, seed)
        disturbed.run.finish()
        guilty = {name for name, stage in disturbed.insiders.items() if stage == 1}
        assert struck == guilty, f"peer{peer + 1}"
        assert bool(disturbed.of(PeerFenced)) == bool(guilty)


@pytest.mark.parametrize(("stages", "replicas"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_one_peer_alone_makes_no_step_be_skipped_and_is_found(
    stages: int, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strikes: Counter[str] = Counter()
    strike = Probation.strike

    def noted(self: Probation, peer: str, *others) -> None:
        strikes[peer] += 1
        strike(self, peer, *others)

    monkeypatch.setattr(Probation, "strike", noted)
    for peer in range(stages * replicas):
        strikes.clear()
        disturbed = Disturbed("nan", {peer}, stages, replicas, seed=peer)
        disturbed.run.finish()
        assert not [d for d in disturbed.run.world.watch.decisions.values() if d.skip]
        (insider,) = disturbed.insiders
        assert strikes[insider] == max(strikes.values()), f"{insider}: {strikes}"
        assert not disturbed.of(PeerExpelled)


@pytest.mark.parametrize("stages", [2, 3])
def test_all_victims_of_one_sender_fail_once_and_then_its_siblings_do_without_it(stages: int) -> None:
    for peer in range(2 * stages):
        disturbed = Disturbed("huge", {peer}, stages, 2, seed=peer)
        disturbed.run.finish()
        assert len(disturbed.of(StepAborted)) <= 2, f"peer{peer + 1}"


def test_where_nobody_else_can_send_it_the_run_waits_and_says_for_whom() -> None:
    """The third peer is its victims' sibling, so that the insider is alone."""
    disturbed = Disturbed("huge", {0}, 2, 2, count=3)
    world = disturbed.run.world
    world.run(60.0, 60_000, lambda: False)
    assert disturbed.insiders == {"peer1": 1} and not world.watch.decisions
    waits = disturbed.of(RunPaused)[-1].reason
    assert "which peer1 sent" in waits and "add a peer for stage 0 or 1" in waits


@pytest.mark.parametrize("seed", range(6))
def test_who_ignores_evaluations_holds_them_up_no_longer_than_they_are_worth_and_seldom(seed: int) -> None:
    disturbed = Disturbed("mute", {seed, (seed + 2) % 6}, 2, 3, seed)
    disturbed.run.finish()
    took = disturbed.evaluating_s()
    heartbeat = disturbed.run.plan.settings.heartbeat_s
    bound = (WORTH_BEATS + 3) * heartbeat  # two usual steps are less here
    assert len(took) == STEPS - 1 and max(took) < bound, took
    held_up = [s for s in took if s > 2 * heartbeat]
    assert 1 <= len(held_up) <= 4, "each of the two is tried twice in so many"
    assert not [e for e in disturbed.of(PeerFenced) if "+" not in e.pass_id], "it trains, and may"
    assert not disturbed.of(EvaluationDropped), "a sibling takes over in time"


def test_an_evaluation_that_nobody_else_can_do_is_dropped_and_training_goes_on() -> None:
    disturbed = Disturbed("mute", {0}, 2, 1)
    disturbed.run.finish()
    dropped = disturbed.of(EvaluationDropped)
    assert [event.version for event in dropped] == list(range(1, STEPS + 1)), "each once"
    assert {tuple(event.who) for event in dropped} == {("peer1.1",)}
    assert "deadline" in dropped[0].reason and not disturbed.of(StepAborted)


def test_a_scenario_draws_such_runs() -> None:
    seeds = range(len(DISTURBANCES))
    kinds = {lie.about for seed in seeds for lie in plan_of("insiders", seed).lies if lie is not None}
    assert kinds == set(DISTURBANCES)
    for seed in seeds:
        plan = plan_of("insiders", seed)
        assert plan == dataclasses.replace(plan_of("insiders", seed))
        assert sum(lie is not None for lie in plan.lies) == (1 if DISTURBANCES[seed] == "nan" else 2)


@pytest.mark.parametrize("about", ["spoilt", "nan"])
@pytest.mark.parametrize("peer", [0, 1])
def test_who_is_alone_in_its_stage_is_left_out_and_ends_nothing(about: About, peer: int) -> None:
    disturbed = Disturbed(about, {peer}, 2, 1, skips=1)
    world = disturbed.run.world
    world.run(60.0, 60_000, lambda: False)
    ((name, stage),) = disturbed.insiders.items()
    told = [(event.stage, event.reload, event.left_out) for event in disturbed.of(StageDoubted)]
    assert told == [(stage, [f"{name}.1"], []), (stage, [], [f"{name}.1"])]
    assert not disturbed.of(RunDiverged) and not world.watch.decisions
    assert f"stage {stage} has no trusted peer. {name}.1 is left out" in disturbed.of(RunPaused)[-1].reason


@pytest.mark.parametrize("stage", [0, 1])
def test_two_in_one_stage_that_say_the_same_end_nothing(stage: int) -> None:
    """Their word is that of one place, whoever they are. A spare replica of the other stage does their work."""
    disturbed = Disturbed("spoilt", set(range(4)), 2, 2, stage=stage)
    disturbed.run.finish()
    doubted = disturbed.of(StageDoubted)
    assert {event.stage for event in doubted} == {stage} and sum(len(event.left_out) for event in doubted) == 2
    assert not disturbed.of(RunDiverged)


@pytest.mark.parametrize("peer", [0, 1])
def test_who_sends_nothing_finite_makes_a_run_of_single_replicas_wait_and_say_why(peer: int) -> None:
    """Nobody knows whose fault it is: what follows from what one sends is not finite either."""
    disturbed = Disturbed("unsendable", {peer}, 2, 1, skips=1)
    world = disturbed.run.world
    world.run(60.0, 60_000, lambda: False)
    assert not disturbed.of(RunDiverged) and not disturbed.of(StageDoubted) and not world.watch.decisions
    waits = disturbed.of(RunPaused)[-1].reason
    assert "It is not skipped" in waits and "a single peer may be the cause" in waits


@pytest.mark.parametrize("seed", [*range(16), 136, 340])
def test_a_stage_that_is_not_believed_is_taken_by_others_and_the_answer_is_that_of_one_machine(seed: int) -> None:
    outcome = run_seed("alone", seed)
    assert outcome.ok, f"seed {seed}: {outcome.invariant}: {outcome.detail}"
