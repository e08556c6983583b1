"""RMSNorm with a gain, as in Llama. It always computes in fp32, also under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / √(mean x² + eps) · weight over the last axis, (…, dim) → (…, dim) fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self._eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps))
