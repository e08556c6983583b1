"""Runs whose gradients depend on the kind of machine: what is done again after a rollback may come out otherwise."""

from __future__ import annotations

import pytest

from swarm.protocol.ids import StageIndex
from swarm.protocol.peer.status_reports import Saved
from swarm.simulation.runs.runner import run_seed
from swarm.simulation.toy.sim_storage import Disk
from swarm.simulation.toy.toy_model import state_digest

ROLLED_BACK = (456,)
"""Seeds in which a peer comes back with a checkpoint of steps that have been done again since."""


@pytest.mark.parametrize("seed", ROLLED_BACK)
def test_a_checkpoint_of_steps_that_were_done_again_is_not_used(seed: int) -> None:
    outcome = run_seed("unlike", seed)
    assert outcome.ok, f"{outcome.invariant}: {outcome.detail}"
    assert outcome.rollbacks


@pytest.mark.parametrize("seed", ROLLED_BACK)
def test_if_it_were_a_wrong_state_would_be_held(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(disk: Disk) -> Saved | None:
        if not disk.checkpoints:
            return None
        version, stage = max((version, stage) for stage, version in disk.checkpoints)
        return Saved(StageIndex(stage), version, state_digest(stage, version, disk.checkpoints[stage, version]))

    monkeypatch.setattr(Disk, "preferred", newest)
    outcome = run_seed("unlike", seed)
    assert outcome.invariant == "replicas agree", outcome.detail
