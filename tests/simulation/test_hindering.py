"""Insiders that cost the others time: each run ends with the answer of one machine, and soon without their doings."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from run_events import events_in

from swarm.events import (
    PeerDelays,
    PeerExpelled,
    PeerJoined,
    PeerMoved,
    RolledBack,
    StageAmended,
    StepAborted,
    StepDecided,
    SumsMisreported,
)
from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Dismiss, Message, Prepared, Status
from swarm.simulation.faults import false_words
from swarm.simulation.faults.lie import HINDERING, Lie
from swarm.simulation.kernel.network import SimNetwork
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run, run_seed
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.peer_body import PeerBody

BOTH_IN_A_HALF = 770372
"""Of two halves of an audit, the second are two liars of one person, with the right sums and a false loss."""


@pytest.mark.parametrize("seed", [*range(12), BOTH_IN_A_HALF])
def test_a_run_ends_with_the_answer_of_one_machine(seed: int) -> None:
    outcome = run_seed("hindering", seed)
    assert outcome.ok, f"{outcome.invariant}: {outcome.detail}"


def test_a_scenario_draws_each_kind() -> None:
    plans = [plan_of("hindering", seed) for seed in range(len(HINDERING))]
    assert {lie.about for plan in plans for lie in plan.lies if lie is not None} == set(HINDERING)


def denying(audit_every: int, monkeypatch: pytest.MonkeyPatch, steps: int = 40) -> Counter[type]:
    """The kinds of events of a run in which one of three replicas reports that finite sums are not."""
    settings = small_settings(stages=2, microbatches=6, steps=steps, replicas=3, checkpoint_every=1000)
    settings = replace(settings, audit_every=audit_every, audit_secret=b"x", screened=True)
    lies = (None, Lie("denying", since=4), *(None,) * 4)
    monkeypatch.setattr(false_words, "_denied", lambda _, prepared: replace(prepared, finite=False))
    run = Run(Plan("hindering", 0, settings, 0, (1.0,) * 6, (), lies=lies, people=tuple(range(6))))
    events = events_in(run)
    run.finish()
    return Counter(type(event) for _, event in events)


def test_the_last_of_a_stage_that_says_it_leaves_and_stays_keeps_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first pass, its state can be computed again, so another peer takes up the stage."""
    leaver: list[Actor] = []
    send = SimNetwork.send

    def say(network: SimNetwork, source: Process, to: Actor, message: Message) -> None:
        if isinstance(message, Dismiss) and to in leaver:
            return
        if isinstance(message, Status) and message.stage == 1 and network._world.now > 0.5:
            leaver[:] = leaver or [source.actor]
            if source.actor in leaver:
                message = replace(message, leaving=True)
        send(network, source, to, message)

    monkeypatch.setattr(SimNetwork, "send", say)
    settings = small_settings(stages=2, microbatches=4, steps=6, replicas=2)
    run = Run(Plan("calm", 1, settings, 0, (1.0,) * 3, ()))
    events = events_in(run)
    with suppress(Violation):  # the checks expect of an honest peer that it has the last state
        run.finish()
    assert leaver and any(isinstance(event, PeerMoved) for _, event in events)
    assert [event.step for _, event in events if isinstance(event, StepDecided)] == [0, 1, 2, 3, 4, 5]


def _old_rule(self: Preparation, stage: int, without: frozenset) -> Prepared | None:
    there = [said for actor, said in self.reports[stage].items() if actor not in without]
    return there[0] if there and len({said.answer for said in there}) == 1 else None


def test_who_denies_sums_twice_that_others_hold_too_is_expelled(monkeypatch: pytest.MonkeyPatch) -> None:
    events = denying(1000, monkeypatch)
    assert events[PeerExpelled] == 1 and events[SumsMisreported] == 2 and not events[StageAmended]
    monkeypatch.setattr(Preparation, "_believed", _old_rule)
    before = denying(1000, monkeypatch)
    assert not before[PeerExpelled] and before[StageAmended] > 5


def test_without_audits_nobody_is_expelled_and_no_stage_adds_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    events = denying(0, monkeypatch)
    assert not events[PeerExpelled] and 2 < events[SumsMisreported] < 10 and not events[StageAmended]


def test_a_standby_takes_a_place_beside_who_is_late_alone() -> None:
    """Its reports come just before the end of a step budget, in each step."""
    plan = plan_of("hindering", HINDERING.index("dawdling"))
    run = Run(plan)
    events = events_in(run)
    run.finish()
    late = [event for _, event in events if isinstance(event, PeerDelays)]
    assert late and late[0].alone and "may take a place beside it" in late[0].sentence()
    assert not any(isinstance(event, StepAborted | RolledBack) for _, event in events)
    usual = Run(replace(plan, lies=()))
    usual.finish()
    assert run.world.now - usual.world.now < 6 * plan.settings.step_budget_s


def test_devices_that_come_and_go_all_the_time_delay_a_run_little() -> None:
    plan = plan_of("hindering", HINDERING.index("roaming"))
    run = Run(plan)
    run.finish()
    usual = Run(replace(plan, lies=()))
    usual.finish()
    assert max(process.actor.incarnation for process in run.world.processes) > 3
    assert run.world.now < 1.5 * usual.world.now


def seconds_per_step(peers: int, monkeypatch: pytest.MonkeyPatch, **claims: float) -> float:
    """Virtual seconds per step of two stages of three replicas each, if there are six `peers`. The second one `claims`
    something in each status.
    """
    settings = small_settings(stages=2, microbatches=24, steps=18, replicas=3, checkpoint_every=1000)
    lies = (None, Lie("status") if claims else None)
    monkeypatch.setattr(false_words, "_extreme", lambda _, status: replace(status, **claims))
    run = Run(Plan("hindering", 0, settings, peers - 6, (1.0,) * peers, (), lies=lies, people=tuple(range(peers))))
    events = events_in(run)
    run.finish()
    decided = [at for at, event in events if isinstance(event, StepDecided)]
    return (decided[-1] - decided[8]) / (len(decided) - 9)


def test_who_claims_to_be_fast_slows_a_run_hardly_more_than_it_would_by_its_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = seconds_per_step(5, monkeypatch)
    assert seconds_per_step(6, monkeypatch, seconds_per_microbatch=1e-6) < 1.15 * absent


def test_nobody_is_moved_after_a_peer_that_reports_another_stage_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reports the other stage in every second group of eight statuses."""
    settings = small_settings(stages=2, microbatches=6, steps=120, replicas=3, checkpoint_every=10)

    def roams(peer: PeerBody, status: Status) -> Status:
        away = status.stage is not None and status.sequence // 8 % 2
        return replace(status, stage=StageIndex(1 - status.stage)) if away and status.stage is not None else status

    monkeypatch.setattr(false_words, "_extreme", roams)
    run = Run(Plan("hindering", 0, settings, 0, (1.0,) * 6, (), lies=(None, Lie("status")), people=tuple(range(6))))
    events = events_in(run)
    run.finish()
    came_back = [event for _, event in events if isinstance(event, PeerJoined) and event.reason.startswith("came back")]
    assert len(came_back) > 10
    assert not any(isinstance(event, PeerMoved) for _, event in events)
