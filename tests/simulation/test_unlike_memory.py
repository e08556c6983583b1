"""Peers that compute in unlike ways, with unlike memory: who gets a stage and who stands by, in whole runs."""

from __future__ import annotations

import pytest

from swarm.events import PeerJoined
from swarm.protocol.stage_needs import ComputeKind
from swarm.simulation.runs.runner import Run
from swarm.simulation.runs.scenario import plan_of


@pytest.mark.parametrize("seed", range(6))
def test_every_peer_is_placed_by_its_own_need(seed: int) -> None:
    """The simulator itself refuses a stage that does not fit. Who fits nowhere is told why, and the run ends."""
    run = Run(plan_of("memory", seed))
    told: dict[str, PeerJoined] = {}
    emitted = run.world.watch.emitted

    def note(event: object) -> None:
        if isinstance(event, PeerJoined):
            told[event.actor.split(".")[0]] = event
        emitted(event)

    run.world.watch.emitted = note  # type: ignore[method-assign]
    run.finish()
    needs, means = run.plan.settings.stage_needs, run.plan.means
    for number, each in enumerate(means, 1):
        least = min(needs[each.kind].least)
        event = told.get(f"peer{number}")
        if event is not None and each.memory is not None and each.memory < least:
            assert event.stage is None
            full = "every stage has its" in event.reason
            assert full or each.kind.value in event.reason, event.reason


def test_plans_hold_peers_whose_kind_alone_decides_whether_they_fit() -> None:
    """Or runs of this scenario would be the same if all peers were taken for a CPU in fp32."""
    decided = 0
    for seed in range(6):
        plan = plan_of("memory", seed)
        usual = plan.settings.stage_needs[ComputeKind.HOST_FP32].least
        for each in plan.means:
            own = plan.settings.stage_needs[each.kind].least
            assert each.memory is not None
            decided += any((a <= each.memory) != (b <= each.memory) for a, b in zip(usual, own, strict=True))
    assert decided >= 6
