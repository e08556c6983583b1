"""The weights with which a stage computes: a half-precision copy of each matrix, made once per step.

Without it, each kept graph would have its own copy, because autocast makes a copy for every matrix product. With
offload, all other parameters have a copy on the device too, in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swarm.compute.offload import host_zeros, pieces, wait_for
from swarm.compute.precision import Precision
from swarm.models.stage_module import StageModule


class WorkingWeights:
    """The working weights of one module, which uses them from now on.

    Call `refresh` whenever parameters have changed.
    """

    def __init__(self, module: StageModule, precision: Precision, device: torch.device | None = None) -> None:
        """`device`: the device of the module, if its parameters are to be moved to the host's memory; None: they stay
        where they are.
        """
        given: dict[str, Tensor] = dict(module.named_parameters())
        self.masters: dict[str, Tensor] = given if device is None else _moved(given, device)
        """The fp32 parameters, which are trained, stored and sent."""
        self._device = device
        self._copied: list[str] = [] if device is None else list(given)
        if precision is not Precision.FP32:
            for name in module.matrices():
                owner, _, leaf = name.rpartition(".")
                copy = nn.Parameter(torch.empty_like(given[name], dtype=precision.dtype))
                setattr(module.get_submodule(owner), leaf, copy)
                if device is None:
                    self._copied.append(name)
        self.leaves: dict[str, Tensor] = dict(module.named_parameters())
        """The tensors whose gradients are computed, with the same names and in the same order."""
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the copies from the present parameters."""
        if self._device is not None:
            for name in self._copied:
                leaf, master = self.leaves[name].view(-1), self.masters[name].view(-1)
                for part in pieces(len(master)):  # converted on the device, which needs room for a piece in fp32
                    leaf[part].copy_(master[part], non_blocking=True)
            wait_for(self._device)
        elif self._copied:
            torch._foreach_copy_(
                [self.leaves[name] for name in self._copied], [self.masters[name] for name in self._copied]
            )


@torch.no_grad()
def _moved(parameters: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies of parameters of `device` in the host's memory."""
    moved = host_zeros(parameters, device)
    for name, parameter in parameters.items():
        moved[name].copy_(parameter)
    return moved
