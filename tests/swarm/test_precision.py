"""Peers that multiply in half precision, as a GPU does, end with the digests of a reference that does so too."""

from __future__ import annotations

from pathlib import Path

from conftest import MakeSwarm

from peers.run.reference import train_reference
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.precision import Precision
from swarm.data.reader import CorpusReader
from swarm.events import PeerLost

PEERS = ("p0", "p1", "p2", "p3")
HALF = ("--precision=bf16",)


def test_a_run_in_half_precision_equals_its_reference_and_survives_a_kill(make_swarm: MakeSwarm, ground: Path) -> None:
    swarm = make_swarm("int8", "run.steps=6", "timing.step_budget_s=600")
    swarm.coordinate()
    options = dict.fromkeys(PEERS, HALF)
    options["p1"] += ("--fault=kill@MicrobatchAccumulated,pass_id=1:2",)
    options["p3"] += ("--fault=stop@StepApplied,step=3",)
    swarm.join_stages(PEERS, options)
    swarm.rejoin("p1", "p3", *HALF)
    swarm.finish()
    assert swarm.coordinator.of(PeerLost)
    swarm.assert_replicas_identical()
    reader = CorpusReader(ground / "corpus", swarm.manifest)
    arithmetic = Arithmetic("cpu", 1, Precision.BF16, compiled=False)
    swarm.assert_equal(train_reference(swarm.manifest, reader, arithmetic=arithmetic).digests)
