"""A stage that fills `--max-memory`: the whole process takes no more than that and what one without a stage does."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from peers.run.stage_sizes import stage_sizes
from peers.runtime.device import BARE
from swarm.events import (
    CheckpointWritten,
    LayersRecomputed,
    MicrobatchAccumulated,
    PeerJoined,
    StateFetched,
    StepApplied,
)
from swarm.protocol.stage_needs import ComputeKind

SHAPE = (
    *("model.dim=640", "model.layers=4", "model.cuts=[2]", "model.heads=10", "model.kv_heads=10", "model.ffn_dim=1792"),
    *("batch.sequences=1", "batch.sequence_length=32", "batch.microbatches=6"),
)


def filled(make_swarm: MakeSwarm) -> tuple[Swarm, int]:
    """A swarm of two peers that saves every fourth step, and what each may plan with: as much as its stage needs."""
    swarm = make_swarm("int8", *SHAPE, "run.steps=200", "checkpoint.every=4", "swarm.replicas=1")
    needed = max(stage_sizes(swarm.manifest)["stage_needs"][ComputeKind.HOST_FP32].whole)
    swarm.coordinate()
    for name in ("p0", "p1"):
        join(swarm, name, needed)
    for peer in swarm.peers.values():
        peer.wait_for(StepApplied, 3)
        peer.wait_for(CheckpointWritten)
    return swarm, needed


def join(swarm: Swarm, name: str, needed: int, capacity: float | None = None) -> Process:
    return swarm.join(name, f"--max-memory={needed}", capacity=capacity)


def check(swarm: Swarm, needed: int) -> None:
    found = {name: peak(peer.pid) for name, peer in swarm.peers.items()}
    print("needed", needed, "peaks", found)
    assert max(found.values()) <= needed + BARE, (needed, found)
    assert min(found.values()) >= needed, "they fill what they may take, or this proves nothing"


def peak(pid: int) -> int:
    """Most bytes of memory that a process has had at once."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def test_it_takes_what_it_may_and_what_a_bare_process_takes(make_swarm: MakeSwarm) -> None:
    """Also while another fetches the state and the sums, and trains, and after a peer moved to the other stage."""
    swarm, needed = filled(make_swarm)
    check(swarm, needed)
    third = join(swarm, "p2", needed, capacity=20.0)  # as fast as the others, or it would get no microbatch for long
    third.wait_for(StateFetched)
    third.wait_for(MicrobatchAccumulated)
    third.wait_for(StepApplied, len(third.of(StepApplied)) + 2)
    third.wait_for(CheckpointWritten)
    check(swarm, needed)
    sole = next(name for name in ("p0", "p1") if loaded(swarm.peers[name]) != loaded(third))
    swarm.peers.pop(sole).kill()
    third.wait_for(StepApplied, len(third.of(StepApplied)) + 2)
    assert len({loaded(peer) for peer in swarm.peers.values()}) == 2, "one of the two has moved"
    check(swarm, needed)


def loaded(peer: Process) -> int | None:
    """The stage whose state a peer has loaded last."""
    return peer.of(PeerJoined)[-1].stage


LONG = (
    *("model.dim=256", "model.layers=8", "model.cuts=[4]", "model.heads=8", "model.kv_heads=8", "model.ffn_dim=704"),
    *("batch.sequences=2", "batch.sequence_length=512", "batch.microbatches=2", "model.context=512"),
)


def test_graphs_fill_memory_too_and_without_room_for_one_its_layers_are_computed_again(make_swarm: MakeSwarm) -> None:
    """One peer has room for one graph. The other has a little more than it needs at least. The answer is the same."""
    swarm = make_swarm("int8", *LONG, "run.steps=2", "swarm.replicas=1")
    needs = stage_sizes(swarm.manifest)["stage_needs"][ComputeKind.HOST_FP32]
    least, usual = max(needs.least) + (32 << 20), max(needs.whole)
    assert least < min(needs.whole)
    swarm.coordinate()
    planned = {"p0": least, "p1": usual}
    for name, needed in planned.items():
        join(swarm, name, needed)
    for name, needed in planned.items():
        peer = swarm.peers[name]
        peer.wait_for(StepApplied, 2)
        assert bool(peer.of(LayersRecomputed)) == (needed == least)
        found = peak(peer.pid)
        print(name, needed, found)
        assert needed <= found <= needed + BARE, name
    swarm.finish()
    swarm.assert_command_says_equal()
