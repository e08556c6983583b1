"""A state that is written to disk, with any digest that a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from swarm.state.checkpoints import CheckpointStore
from swarm.state.folder import Checkpoint
from swarm.state.shard import file_parts


@dataclass(frozen=True)
class GivenState:
    """What `write_draft` writes, and what it reports about it."""

    tensors: Mapping[str, torch.Tensor]
    version: int
    updates: int
    chain: str
    digest: str
    subspace_id: str = ""
    spoilt: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def give(self, write: Callable[[memoryview], None]) -> GivenState:
        for part in file_parts(self.tensors, {})[1:]:
            write(memoryview(part))
        return self


def saved(
    store: CheckpointStore,
    stage: int,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    digest: str,
    *,
    updates: int,
    chain: str,
    proven: int | None = None,
) -> Checkpoint:
    """The checkpoint that `store` makes of the state."""
    return store.save(store.draft(stage, GivenState(tensors, version, updates, chain, digest)), proven)
