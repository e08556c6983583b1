"""Version 0 of a run from imported parameters: each stage's state, its digest, its place in the archive.

A state of version 0 is the parameters, moments of zero, and the chain digest at the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from swarm.compute.digest import first_chain, state_digest
from swarm.compute.optimizer import StageState
from swarm.manifest import ModelSection, RunManifest
from swarm.state.archive import Archive
from swarm.state.initial import InitialParameters
from swarm.state.layout import KINDS, ShardMeta
from swarm.state.shard import Tensors
from swarm.state.transfer import TransferHeader, iter_chunks


def first_digests(parameters: InitialParameters, model: ModelSection) -> tuple[str, ...]:
    """The digest of each stage's state at version 0, for the manifest."""
    stages = range(model.stages)
    return tuple(state_digest(0, 0, _tensors(parameters.of_stage(model, stage))) for stage in stages)


def first_states(parameters: InitialParameters, manifest: RunManifest) -> Iterator[StageState]:
    """The states of version 0, stage by stage, for the reference. The swarm loads the same states."""
    for stage in range(manifest.model.stages):
        tensors = _tensors(parameters.of_stage(manifest.model, stage))
        yield StageState(0, 0, first_chain(manifest, stage), dict(tensors))


def archive_first(archive: Archive, parameters: InitialParameters, manifest: RunManifest) -> None:
    """Put version 0 into the archive, replacing an existing one. Raises StateError."""
    for stage, state in enumerate(first_states(parameters, manifest)):
        meta = ShardMeta(manifest.hash, stage, 0, 0, state.chain, manifest.initial.digests[stage])
        chunks = iter_chunks(state.tensors, meta)
        header = next(chunks)
        writer = archive.receive(stage, 0, TransferHeader.decode(header, "initial parameters").hash)
        try:
            writer.feed(header)
            for chunk in chunks:
                writer.feed(chunk)
            writer.commit()
        finally:
            writer.abort()


def _tensors(parameters: Tensors) -> Tensors:
    """The tensors of a state: the parameters themselves, and for the moments views of one block of zeros."""
    zeros = torch.zeros(max(parameter.numel() for parameter in parameters.values()))
    return {
        f"{kind}/{name}": value if kind == "param" else zeros[: value.numel()].view(value.shape)
        for kind in KINDS
        for name, value in parameters.items()
    }
