"""A residual image classifier, cut into stages: convolutions of 3 × 3 at one resolution, pre-activation blocks.

An image is a sequence of ids: the levels of its pixels, row by row, then its class. So images have the same format as
text, and a boundary carries activations (B, pixels, channels). Norms are over groups of channels of one image, so that
a result does not depend on the other images in a microbatch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.manifest import ModelSection
from swarm.models.initial import seeded_normal
from swarm.models.stage_module import StageModule


class ResNetStage(StageModule):
    """One stage of the classifier. The first one also has the stem; the last one also has the final norm, the pooling
    and the head.

    Logits are (B, classes).
    """

    def __init__(self, model: ModelSection, stage: int) -> None:
        super().__init__(model, stage)
        self._levels = model.vocab_size
        self.model = _Trunk()
        if self.first:
            self.model.stem = nn.Conv2d(1, model.dim, 3, padding=1, bias=False)
        # the key is the block's number in the whole model, so that names do not depend on the cuts
        self.model.layers = nn.ModuleDict({str(i): _Block(model) for i in model.layer_range(stage)})
        if self.last:
            self.model.norm = _norm(model)
            self.head = nn.Linear(model.dim, model.classes, bias=False)

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        side = math.isqrt(x.shape[1])
        if self.first:
            levels = x.float() / (self._levels - 1)
            hidden: Tensor = self.model.stem(levels.view(-1, 1, side, side))
        else:
            hidden = x.transpose(1, 2).reshape(x.shape[0], -1, side, side)
        for block in self.model.layers.values():
            hidden = block(hidden)
        if self.last:
            logits: Tensor = self.head(F.relu(self.model.norm(hidden)).mean((2, 3)))
            return logits
        return hidden.flatten(2).transpose(1, 2)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy summed over the images."""
        return F.cross_entropy(logits.float(), labels[:, -1], reduction="sum")


def initial_value(name: str, shape: torch.Size, model: ModelSection, seed: int) -> Tensor:
    """Initial fp32 CPU value of a tensor: norms as identity, else normal, scaled by the fan-in (He et al. 2015)."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("norm.bias"):
        return torch.zeros(shape)
    std = math.sqrt(2 / math.prod(shape[1:]))
    if name.endswith("second.weight"):  # a writer to the residual: smaller in deeper models
        std /= math.sqrt(model.layers)
    return seeded_normal(name, shape, seed) * std


class _Trunk(nn.Module):
    """The modules of a stage besides its blocks: `stem` in the first stage, `norm` in the last."""

    stem: nn.Conv2d
    layers: nn.ModuleDict
    norm: nn.GroupNorm


class _Block(nn.Module):
    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        channels = model.dim
        self.first_norm = _norm(model)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = _norm(model)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(F.relu(self.first_norm(x)))
        written: Tensor = self.second(F.relu(self.second_norm(inner)))
        return x + written


def _norm(model: ModelSection) -> nn.GroupNorm:
    return nn.GroupNorm(model.norm_groups, model.dim)
