"""Stage sizes: what a coordinator knows of each stage when it says who can hold it, and who can catch up with it."""

from __future__ import annotations

from peers.dry_run import dry_run
from swarm.compute.graph import graph_bytes
from swarm.manifest import RunManifest


def stage_sizes(manifest: RunManifest) -> dict[str, tuple[int, ...]]:
    """Fields of `Settings`, bytes by stage.

    `stage_memory`: parameters, moments and sums, and the graph of one microbatch. Kept frames may lie on disk instead.
    """
    needs = dry_run(manifest).stages
    memory = tuple(need.state + graph_bytes(manifest, stage) for stage, need in enumerate(needs))
    return {"stage_memory": memory, "stage_sums": tuple(need.sums for need in needs)}
