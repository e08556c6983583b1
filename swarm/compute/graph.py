"""The autograd graph of one microbatch: what it holds between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage

_Result = TypeVar("_Result")


def graph_bytes(manifest: RunManifest, stage: int) -> int:
    """Bytes that the graph of a microbatch holds in a stage, beyond its parameters. Computes and allocates nothing.

    A tenth more than on a CPU, perhaps: attention keeps more where no kernel is chosen for a device.
    """
    module = build_stage(manifest.model, stage, device="meta", seed=None)
    batch = manifest.batch
    tokens = torch.zeros((batch.sequences, batch.sequence_length), dtype=torch.int64, device="meta")
    x = tokens
    if not module.first:
        shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width)
        x = torch.zeros(shape, device="meta", requires_grad=True)

    def run() -> Tensor:
        return module.train_loss(x, tokens, tokens) if module.last else module(x, tokens)

    return saved_bytes(run, lambda out: out, module.parameters())[1]


def saved_bytes(
    run: Callable[[], _Result], output: Callable[[_Result], Tensor], parameters: Iterable[Tensor]
) -> tuple[_Result, int]:
    """What `run` returns, and the bytes that its graph holds beyond `parameters`."""
    known = {p.untyped_storage()._cdata for p in parameters}  # tensors without memory have an identity too
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = run()
    note(output(result))
    return result, sum(storages.values())
