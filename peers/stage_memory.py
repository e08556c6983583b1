"""Stage memory: bytes that a peer of each stage cannot do without. Nobody is given a stage that does not fit."""

from __future__ import annotations

from peers.dry_run import dry_run
from swarm.compute.graph import graph_bytes
from swarm.manifest import RunManifest


def stage_memory(manifest: RunManifest) -> tuple[int, ...]:
    """By stage: parameters, moments and sums, and the graph of one microbatch. Kept frames may lie on disk instead."""
    needs = dry_run(manifest).stages
    return tuple(need.state + graph_bytes(manifest, stage) for stage, need in enumerate(needs))
