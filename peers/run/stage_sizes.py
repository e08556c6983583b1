"""Stage sizes: what a coordinator knows of each stage when it says who can hold it, feed it, and catch up with it."""

from __future__ import annotations

from typing import TypedDict

from peers.run.dry_run import dry_run
from swarm.manifest import RunManifest


class StageSizes(TypedDict):
    """Fields of `Settings`, bytes by stage."""

    stage_memory: tuple[int, ...]
    """Parameters, moments, sums, what is in hand, the graph of one microbatch. Kept frames may lie on disk instead."""
    stage_least: tuple[int, ...]
    """The same of a peer that computes layer by layer again, and so keeps no whole graph."""
    stage_sums: tuple[int, ...]
    stage_frames: tuple[float, ...]
    """Of one microbatch. Empty where codecs are chosen as the run goes: by the links, which then limit nobody. And
    where frames build on earlier ones: most are far smaller than the whole ones that a dry run counts.
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
