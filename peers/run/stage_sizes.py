"""Stage sizes: from these, the coordinator decides which peer can hold a stage, supply it with frames, and catch up
with it.
"""

from __future__ import annotations

from typing import TypedDict

from peers.run.dry_run import dry_run
from swarm.manifest import RunManifest


class StageSizes(TypedDict):
    """Fields of `Settings`: bytes by stage."""

    stage_memory: tuple[int, ...]
    """Parameters, moments, sums, temporary tensors, and the graph of one microbatch. Kept frames may be on disk
    instead.
    """
    stage_least: tuple[int, ...]
    """The same for a peer that recomputes layer by layer, and so keeps no whole graph."""
    stage_sums: tuple[int, ...]
    stage_frames: tuple[float, ...]
    """Frames of one microbatch. Empty in two cases. If codecs are chosen during the run, they adapt to the links, so
    links limit no peer. If frames build on earlier ones, most are far smaller than the whole frames that a dry run
    counts.
    """


def stage_sizes(manifest: RunManifest) -> StageSizes:
    """Return the sizes of all stages, as `dry_run` counts them."""
    needs = dry_run(manifest).stages
    known = not manifest.codec.auto and not manifest.codec.mutual
    frames = tuple(need.retention / manifest.batch.microbatches for need in needs) if known else ()
    memory = tuple(need.memory.device for need in needs)
    return StageSizes(
        stage_memory=memory,
        stage_least=tuple(need.least.device for need in needs),
        stage_sums=tuple(need.sums for need in needs),
        stage_frames=frames,
    )
