"""Peers that multiply in unlike precisions need unlike memory for a stage; each gets a stage by its own need."""

from __future__ import annotations

from conftest import MakeSwarm

from peers.run.stage_sizes import stage_sizes
from swarm.events import PeerJoined, StepApplied
from swarm.protocol.stage_needs import ComputeKind

SHAPE = (
    *("model.dim=256", "model.layers=4", "model.cuts=[2]", "model.heads=4", "model.kv_heads=4", "model.ffn_dim=704"),
    *("batch.sequences=1", "batch.sequence_length=32", "batch.microbatches=4"),
)
"""Few tokens: most of the memory is that of parameters, of which a peer in bf16 has copies."""
HALF = "--precision=bf16"


def test_with_the_same_memory_one_in_fp32_gets_a_stage_and_one_in_bf16_does_not(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("int8", *SHAPE, "run.steps=3", "swarm.replicas=1")
    needs = stage_sizes(swarm.manifest)["stage_needs"]
    usual, half = needs[ComputeKind.HOST_FP32].whole, needs[ComputeKind.HOST_BF16].whole
    between = (max(usual) + min(half)) // 2
    assert max(usual) < between < min(half)
    swarm.coordinate()
    swarm.join("refused", HALF, f"--max-memory={between}")
    refused = swarm.coordinator.wait_for(PeerJoined)
    assert refused.stage is None and "on a CPU in bf16: stands by" in refused.reason
    for name, options in {"p0": (f"--max-memory={between}",), "p1": (HALF, f"--max-memory={max(half)}")}.items():
        peer = swarm.join(name, *options)
        swarm.coordinator.wait_for(PeerJoined, actor=peer.wait_for(PeerJoined).actor)
    for name in ("p0", "p1"):
        swarm.peers[name].wait_for(StepApplied, 3)
    swarm.finish(names=("p0", "p1"))
    assert {event.stage for event in swarm.peers["refused"].of(PeerJoined)} <= {None}
