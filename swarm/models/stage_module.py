"""What every kind of model offers of each of its stages: an nn.Module that knows where in the pipeline it stands."""

from __future__ import annotations

import abc
from collections.abc import Iterable

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

    def train_loss(self, x: Tensor, tokens: Tensor | None, labels: Tensor) -> Tensor:
        """`loss_sum` of the last stage's output, to be learned from. A kind of model may need less memory for it."""
        return self.loss_sum(self(x, tokens), labels)

    def layers(self) -> Iterable[nn.Module]:
        """What is repeated, and so is compiled by itself."""
        return ()

    def compile_layers(self) -> None:
        """Each when it is first needed, for the shapes it then gets."""
        for layer in self.layers():
            layer.compile(dynamic=False)

    def matrices(self) -> list[str]:
        """Names of the parameters that nothing but products with half-precision matrices reads.

        Devices that multiply so keep a copy of each; all other parameters stay fp32.
        """
        kinds = (nn.Linear, nn.Conv2d)
        return [f"{name}.weight" for name, module in self.named_modules() if isinstance(module, kinds)]

    def reset_buffers(self) -> None:
        """Fill what is neither trained nor stored, on whatever device the module lies."""
