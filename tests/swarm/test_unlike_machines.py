"""Peers on machines of unlike kinds hold the same bits; a bit that turns over in memory is found and repaired."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from conftest import MakeSwarm
from swarm_processes import EVEN, Nursery, Process, Swarm

from swarm.events import (
    CheckpointArchived,
    CheckpointsDiffer,
    PeerLost,
    StateDrifted,
    StepApplied,
)

PEERS = ("p0", "p1", "p2", "p3")
OTHERS = ("p2", "p3")
"""One replica of each stage."""


@pytest.fixture(scope="module")
def other_kind() -> Iterator[Nursery]:
    """Its processes use no vector instructions."""
    with mock.patch.dict("os.environ", {"ATEN_CPU_CAPABILITY": "default"}):
        made = Nursery()
    yield made
    made.close()


def archived(swarm: Swarm) -> list[int]:
    return [event.version for event in swarm.coordinator.of(CheckpointArchived)]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has no vector instructions")
@pytest.mark.parametrize(("killed", "sibling"), [("p1", "p3"), pytest.param("p2", "p0", marks=pytest.mark.long)])
def test_a_mixed_run_agrees_at_every_step_and_is_archived(
    make_swarm: MakeSwarm, other_kind: Nursery, killed: str, sibling: str
) -> None:
    swarm = make_swarm("int8", "run.steps=12", "checkpoint.every=2", "timing.step_budget_s=600")
    for name in OTHERS:
        folder = swarm.folder
        swarm.peers[name] = Process(name, folder / name, folder / f"{name}.out", other_kind)
    swarm.coordinate()
    faults = {killed: "kill@MicrobatchAccumulated,pass_id=1:2", sibling: "stop@StepApplied,step=3"}
    swarm.join_stages(PEERS, {name: (f"--fault={faults[name]}",) for name in PEERS if name in faults})
    swarm.rejoin(killed, sibling)
    swarm.finish()
    assert swarm.coordinator.of(PeerLost)
    swarm.assert_replicas_identical()
    assert swarm.coordinator.of(StateDrifted) == swarm.coordinator.of(CheckpointsDiffer) == []
    assert archived(swarm)[-1] == 12 and len(archived(swarm)) >= 4


def test_of_three_replicas_one_with_a_flipped_bit_is_repaired(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("int8", "model.cuts=[]", "swarm.max_replicas=3", "swarm.replicas=3", "run.steps=8")
    swarm.coordinate()
    options = dict.fromkeys(("p0", "p1", "p2"), (EVEN,))
    options["p1"] += ("--fault=flip@MicrobatchAccumulated,pass_id=1:2",)
    swarm.join_stages(tuple(options), options)
    swarm.finish()
    (found,) = swarm.coordinator.of(StateDrifted)
    assert found.reload == [swarm.peers["p1"].actor] and len(found.believed) == 2
    assert found.step in (2, 3), "found within two steps"
    assert swarm.peers["p1"].of(StepApplied, step=7), "it is back"
    swarm.assert_replicas_identical()


def test_nothing_of_the_flipped_bit_is_in_the_result(make_swarm: MakeSwarm, reference) -> None:
    swarm = make_swarm("int8", "model.cuts=[]", "swarm.max_replicas=3", "swarm.replicas=3", "run.steps=8")
    swarm.coordinate()
    swarm.join_stages(("p0", "p1", "p2"), {"p2": ("--fault=flip@StepApplied,step=3",)})
    swarm.finish()
    (found,) = swarm.coordinator.of(StateDrifted)
    assert found.step == 4 and found.reload == [swarm.peers["p2"].actor]
    swarm.assert_equal(reference(swarm))
