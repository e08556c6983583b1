"""Counts the work of a microbatch in a stage, on meta tensors: FLOP, moved bytes, and operations.

A device has one rate for matrix products and another one for memory traffic, and each operation has a launch overhead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swarm.compute.graph import Rules, microbatch_of, working_module
from swarm.compute.memory_table import Mode
from swarm.manifest import RunManifest
from swarm.models.cuts import flop_costs, stage_costs


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a microbatch."""

    flop: float
    """FLOP of matrix products."""
    moved: int
    """Bytes that operations read and write."""
    operations: int


@dataclass(frozen=True, slots=True)
class StageWork:
    forward: Work
    backward: Work


def count_work(manifest: RunManifest, mode: Mode) -> list[StageWork]:
    """The work in each stage, without compiled layers. Computes and allocates no tensors."""
    batch = manifest.batch
    costs = stage_costs(manifest.model, flop_costs(manifest.model, batch.sequence_length))
    found = []
    for stage, cost in enumerate(costs):
        module = working_module(manifest, stage, mode)
        x, tokens = microbatch_of(manifest, stage, module)
        counted = _Counted()
        with Rules(mode), counted:
            out = module.train_loss(x, tokens, tokens) if module.last else module(x, tokens)
            moved, operations = counted.moved, counted.operations
            given = None if module.last else torch.zeros_like(out)
            torch.autograd.grad(out, [*(() if module.first else (x,)), *module.parameters()], given)
        flop = cost * batch.sequences * batch.sequence_length
        forward = Work(flop / 3, moved, operations)
        found.append(StageWork(forward, Work(flop * 2 / 3, counted.moved - moved, counted.operations - operations)))
    return found


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = 0
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = _bytes(result)
        if made and not func.is_view and func.name() not in _FREE and "empty" not in func.name():
            self.moved += made + _bytes((args, kwargs))
            self.operations += 1
        return result


_FREE = ("aten::_unsafe_view", "aten::detach", "aten::alias")
"""Operations that only make a view, without reading or writing memory."""


def _bytes(values: object) -> int:
    return sum(each.numel() * each.element_size() for each in tree_leaves(values) if isinstance(each, Tensor))
