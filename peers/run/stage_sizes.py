"""Stage sizes: from these, the coordinator decides which peer can hold a stage, supply it with frames, and catch up
with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from peers.run.dry_run import StageNeed, dry_run
from swarm.compute.memory_table import ON_CPU, Mode
from swarm.manifest import RunManifest
from swarm.protocol.stage_needs import ComputeKind, StageNeeds


class StageSizes(TypedDict):
    """Fields of `Settings`: bytes by stage."""

    stage_needs: dict[ComputeKind, StageNeeds]
    """By kind of peer: parameters, moments, sums, temporary tensors, and the graph of one microbatch. Kept frames may
    be on disk instead.
    """
    stage_sums: tuple[int, ...]
    stage_frames: tuple[float, ...]
    """Frames of one microbatch. Empty in two cases. If codecs are chosen during the run, they adapt to the links, so
    links limit no peer. If frames build on earlier ones, most are far smaller than the whole frames that a dry run
    counts.
    """


def stage_sizes(manifest: RunManifest) -> StageSizes:
    """Return the sizes of all stages, as `dry_run` counts them."""
    kinds = {kind: dry_run(manifest, Mode.of_kind(kind)).stages for kind in ComputeKind}
    needs = kinds[ON_CPU.kind]
    known = not manifest.codec.auto and not manifest.codec.mutual
    frames = tuple(need.retention / manifest.batch.microbatches for need in needs) if known else ()
    return StageSizes(
        stage_needs={kind: _needs(stages) for kind, stages in kinds.items()},
        stage_sums=tuple(need.sums for need in needs),
        stage_frames=frames,
    )


def _needs(stages: Sequence[StageNeed]) -> StageNeeds:
    return StageNeeds(
        tuple(stage.memory.device for stage in stages), by_layer=tuple(stage.least.device for stage in stages)
    )
