"""The runs, stages and microbatches on which phases measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.lab import Lab
from swarm.buffer import Buffer
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.manifest import (
    BatchSection,
    CodecSection,
    DataSection,
    ModelSection,
    OptimizerSection,
    RunManifest,
    RunSection,
    Shard,
    SumSection,
)
from swarm.models.boundary import is_projector
from swarm.protocol.ids import Attempt, Microbatch, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Backward, Forward

PASS = PassId(Term(0), StepNumber(0))
ATTEMPT = Attempt(PASS, StageIndex(0), 0)
MIDDLE = 1
"""The stage that is measured, of three: layers alone."""


def run_of(dim: int, ffn: int, layers: int, rows: int, length: int, subspace_dim: int = 0) -> RunManifest:
    """A run whose middle stage has `layers` layers, and whose first and last stages have one each."""
    subspace: dict[str, Any] = {"residual": "subspace", "subspace_dim": subspace_dim} if subspace_dim else {}
    model = ModelSection(
        vocab_size=32000,
        dim=dim,
        layers=layers + 2,
        heads=max(1, dim // 64),
        kv_heads=max(1, dim // 256),
        ffn_dim=ffn,
        context=length,
        cuts=(1, layers + 1),
        **subspace,
    )
    shard = Shard(file="x", sha256="0" * 64, tokens=1_000_000)
    return RunManifest(
        run=RunSection(steps=100),
        model=model,
        subspace_id=model.subspace_id,
        batch=BatchSection(microbatches=8, sequences=rows, sequence_length=length),
        codec=CodecSection(forward="int8", backward="int8"),
        sums=SumSection(grid_bits=24),
        optimizer=OptimizerSection(),
        data=DataSection(
            tokenizer_sha256="0" * 64,
            vocab_size=model.vocab_size,
            train=(shard,),
            heldout=(shard,),
            unigram_entropy=4.0,
            bytes_per_token=4.0,
        ),
    )


def stage_of(lab: Lab, manifest: RunManifest) -> Stage:
    """With values drawn on the device: seeded ones take a core most of a minute at these sizes."""
    stage = Stage(manifest, MIDDLE, StageOptions(str(lab.device), 1 << 40), initialised=False)
    fill(stage.parameters)
    stage.loaded()
    return stage


@torch.no_grad()
def fill(parameters: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        assert not is_projector(name), "a projector must be orthonormal"
        parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(0, 0.02)


def inputs_of(manifest: RunManifest) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, an activation and a gradient, on the CPU."""
    batch = manifest.batch
    generator = torch.Generator().manual_seed(0)
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width(1))
    columns = (batch.sequences, batch.sequence_length + 1)
    tokens = torch.randint(0, manifest.model.vocab_size, columns, generator=generator)
    return tokens, torch.randn(shape, generator=generator), torch.randn(shape, generator=generator) * 1e-3


def bodies_of(manifest: RunManifest) -> tuple[Buffer, Buffer]:
    """What the middle stage receives of a microbatch: the forward's body, the backward's."""
    body = BodyFormat(manifest)
    tokens, hidden, gradient = inputs_of(manifest)
    forward = body.pack_forward(MIDDLE, BodyKind.BATCH, tokens, hidden)
    return forward, body.pack_backward(MIDDLE + 1, gradient)


def compute_one(stage: Stage, bodies: tuple[Buffer, Buffer]) -> None:
    stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(0), bodies[0]))
    stage.backward(Backward(PASS, Microbatch(0), bodies[1]))
