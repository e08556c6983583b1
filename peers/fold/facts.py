"""Run facts: what the manifest of a run says that its log does not. All views do without it, and then show less."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from swarm.manifest import RunManifest
from swarm.manifest.run_manifest import PROTOCOL_VERSION

FP32 = 4
"""Bytes of a value."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    name: str
    steps: int
    microbatches: int
    tokens_per_step: int
    layers: tuple[int, ...]
    """Of each stage."""
    codec: tuple[str, str] | None
    """What crosses the boundaries forward and backward. None: it is chosen as the run goes."""
    frame_fp32: int
    """Bytes that one microbatch's activations would take at a boundary in fp32."""

    def share_of_layers(self, stage: int) -> float:
        return self.layers[stage] / sum(self.layers) if 0 <= stage < len(self.layers) else 0.0


def facts_of(manifest: RunManifest) -> RunFacts:
    model, batch = manifest.model, manifest.batch
    return RunFacts(
        manifest.run.name,
        manifest.run.steps,
        batch.microbatches,
        batch.tokens_per_step,
        tuple(len(model.layer_range(stage)) for stage in range(model.stages)),
        None if manifest.codec.auto else (manifest.codec.forward, manifest.codec.backward),
        batch.tokens_per_microbatch * model.boundary_width * FP32,
    )


def facts_in(home: Path) -> RunFacts | None:
    """Of a coordinator's home, where the manifest lies beside the archive. None: it does not, or cannot be read.

    A run of another release is shown too: here nothing depends on how its peers spoke.
    """
    try:
        raw = json.loads((home / "archive" / "run.json").read_bytes())
        return facts_of(RunManifest.model_validate(raw | {"protocol_version": PROTOCOL_VERSION}))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
