"""What every kind of model offers of each of its stages: an nn.Module that knows where in the pipeline it stands."""

from __future__ import annotations

import abc

from torch import Tensor, nn

from swarm.manifest import ModelSection


class StageModule(nn.Module, abc.ABC):
    """One stage of a model. What crosses a boundary is (B, T, model.boundary_width) fp32."""

    def __init__(self, model: ModelSection, stage: int) -> None:
        super().__init__()
        self.first = stage == 0
        self.last = stage == model.stages - 1
        self.shared = int(model.shares_embedding and (self.first or self.last))
        """How many of its parameters another stage holds too. They come first, equal and in the same order in both."""

    @abc.abstractmethod
    def forward(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """From what crosses the boundary before this stage to what crosses the one after it; from the last, logits.

        `x` is ids (B, T) int64 at stage 0. `tokens` are those ids, at any stage.
        """

    @abc.abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss summed over all that it is taken of, fp32 scalar, nats. labels (B, T): the ids after each of x."""

    def reset_buffers(self) -> None:
        """Fill what is neither trained nor stored, on whatever device the module lies."""
