"""The weights with which a stage computes: a half-precision copy of each matrix, made once per step.

Without it, each kept graph would have its own copy, because autocast makes a copy for every matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swarm.compute.precision import Precision
from swarm.models.stage_module import StageModule


class WorkingWeights:
    """The working weights of one module, which uses them from now on.

    Call `refresh` whenever parameters have changed.
    """

    def __init__(self, module: StageModule, precision: Precision) -> None:
        self.masters: dict[str, Tensor] = dict(module.named_parameters())
        """The fp32 parameters, which are trained, stored and sent."""
        self._copied: list[str] = []
        if precision is not Precision.FP32:
            for name in module.matrices():
                owner, _, leaf = name.rpartition(".")
                copy = nn.Parameter(torch.empty_like(self.masters[name], dtype=precision.dtype))
                setattr(module.get_submodule(owner), leaf, copy)
                self._copied.append(name)
        self.leaves: dict[str, Tensor] = dict(module.named_parameters())
        """The tensors whose gradients are computed, with the same names and in the same order."""
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the copies from the present parameters."""
        if self._copied:
            torch._foreach_copy_(
                [self.leaves[name] for name in self._copied], [self.masters[name] for name in self._copied]
            )
