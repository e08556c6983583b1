"""The optimizer, learning rate and warm-up that suit a model, by its width and its boundaries."""

from __future__ import annotations

from typing import Literal

from swarm.manifest import ModelSection, OptimizerSection, RunFile

RATE_TIMES_DIM = 0.512
"""Peak learning rate × `model.dim` of a dense model. The best rates that were measured are 4·10⁻³ at 128 and 2·10⁻³ at
256 (docs/compression.md). Brown et al. 2020, table 2.1, has 6·10⁻⁴ at 768 and 2·10⁻⁴ at 2,048.
"""
NARROW = 2.0
"""A model with narrow boundaries likes a rate so many times higher (docs/compression.md)."""
HIGHEST = 4e-3
"""At twice this rate, narrow models of width 128 and 256 diverged in some runs (docs/compression.md)."""
MUON = 2.0
"""Muon likes a rate so many times higher than AdamW, in a dense model (docs/optimizers.md)."""
WARMUP = 10
"""A run warms up for one of so many parts of its steps, but no shorter than by default."""


def suited_kind(model: ModelSection) -> Literal["adamw", "muon"]:
    """The optimizer for a new run."""
    return "muon" if model.kind == "llama" else "adamw"


def suited(run: RunFile) -> dict[str, float]:
    """The keys of [optimizer] that suit the model and the optimizer of `run`, with values. None for a classifier."""
    model = run.model
    if model.kind != "llama":
        return {}
    higher = NARROW if model.narrow else MUON if run.optimizer.kind == "muon" else 1.0
    rate = min(RATE_TIMES_DIM / model.dim * higher, HIGHEST)
    warmup = max(run.run.steps // WARMUP, OptimizerSection().warmup_steps)
    return {"learning_rate": float(f"{rate:.2g}"), "warmup_steps": warmup}
