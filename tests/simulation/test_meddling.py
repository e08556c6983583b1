"""Insiders that send messages in others' names, accuse others, claim false means or are late: the run ends well.

The simulator's watch checks the result of each run; an evaluation may be false, since nobody computes it again.
"""

from __future__ import annotations

import pytest
from run_events import events_in

from swarm.events import PeerExpelled, PeerLost
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.simulation.faults.lie import MEDDLING
from swarm.simulation.runs.runner import Run, run_seed
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.sim_peer import SimPeer


@pytest.mark.parametrize("seed", range(2 * len(MEDDLING)))
def test_no_run_ends_and_nobody_honest_is_sent_away_or_lost(seed: int) -> None:
    plan = plan_of("meddling", seed)
    run = Run(plan)
    events = events_in(run)
    run.finish()
    insiders = {str(p.actor) for p in run.world.processes if isinstance(p, SimPeer) and p.lie is not None}
    assert insiders
    gone = {event.actor for _, event in events if isinstance(event, PeerExpelled | PeerLost)}
    assert gone <= insiders
    assert len(run.world.watch.decisions) == plan.settings.steps


def test_the_scenario_draws_every_kind() -> None:
    plans = [plan_of("meddling", seed) for seed in range(len(MEDDLING))]
    assert {lie.about for plan in plans for lie in plan.lies if lie is not None} == set(MEDDLING)


def test_a_coordinator_that_believes_reports_in_others_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are applied to the peer that they name, instead of being ignored."""
    hear = CoordinatorCore._on_message

    def credulous(self: CoordinatorCore, sender, message, now: float) -> None:
        hear(self, getattr(message, "actor", sender), message, now)

    monkeypatch.setattr(CoordinatorCore, "_on_message", credulous)
    seeds = range(0, 20 * len(MEDDLING), len(MEDDLING))
    assert MEDDLING[0] == "impostor"
    assert any(not run_seed("meddling", seed).ok for seed in seeds)
