"""The weights that a stage computes with: of each matrix a copy in half precision, made once a step.

Without it every graph that is kept holds a copy of its own: autocast makes one whenever a matrix is multiplied with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swarm.compute.precision import Precision
from swarm.models.stage_module import StageModule


class WorkingWeights:
    """Of one module, which computes with them from now on. `refresh` whenever the parameters have changed."""

    def __init__(self, module: StageModule, precision: Precision) -> None:
        self.masters: dict[str, Tensor] = dict(module.named_parameters())
        """The parameters, fp32: what is trained, stored and sent."""
        self._copied: list[str] = []
        if precision is not Precision.FP32:
            for name in module.matrices():
                owner, _, leaf = name.rpartition(".")
                copy = nn.Parameter(torch.empty_like(self.masters[name], dtype=precision.dtype))
                setattr(module.get_submodule(owner), leaf, copy)
                self._copied.append(name)
        self.leaves: dict[str, Tensor] = dict(module.named_parameters())
        """What gradients are taken of, under the same names and in the same order."""
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the parameters as they are now."""
        if self._copied:
            torch._foreach_copy_(
                [self.leaves[name] for name in self._copied], [self.masters[name] for name in self._copied]
            )
