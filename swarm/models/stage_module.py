"""The interface of a stage, for every kind of model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swarm.manifest import ModelSection


class StageModule(nn.Module, abc.ABC):
    """One stage of a model. The frames over a boundary are (B, T, model.boundary_width(boundary)) fp32."""

    def __init__(self, model: ModelSection, stage: int) -> None:
        super().__init__()
        self.first = stage == 0
        self.last = stage == model.stages - 1
        self.shared = int(model.shares_embedding and (self.first or self.last))
        """Number of parameters that another stage has too. They come first, in the same order in both stages."""
        self.recomputes_layers = False
        """Whether each layer uses activation checkpointing: a graph keeps its input, and a backward recomputes it."""
        self.recomputes_within: Callable[[], AbstractContextManager[object]] = nullcontext
        """The context in which a layer is recomputed. It is needed because torch does not restore function modes."""

    @abc.abstractmethod
    def forward(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Compute the frame for the next stage from the frame of the previous one; in the last stage, the logits.

        `x`: ids (B, T) int64 at stage 0, else the frame. `tokens`: the ids, at any stage.
        """

    @abc.abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss summed over all targets, fp32 scalar, nats. labels: (B, T), the next id for each position."""

    def train_loss(self, x: Tensor, tokens: Tensor | None, labels: Tensor) -> Tensor:
        """The training loss: `loss_sum` of the last stage's output. Subclasses may compute it with less memory."""
        return self.loss_sum(self(x, tokens), labels)

    def layers(self) -> Iterable[nn.Module]:
        """The repeated modules; each of them is compiled and recomputed separately. See `through`."""
        return ()

    def through(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """The output of `layer`, with the same bits whether its graph is kept or recomputed."""
        if not self.recomputes_layers or not torch.is_grad_enabled():
            return layer(*inputs)  # type: ignore[no-any-return]
        out: Tensor = checkpoint(
            layer,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), self.recomputes_within()),
        )
        return out

    def compile_layers(self) -> None:
        """Make torch compile each layer at its first use, for the shapes of that use."""
        for layer in self.layers():
            layer.compile(dynamic=False)

    def matrices(self) -> list[str]:
        """Names of the parameters that are used only in matrix products.

        If products are in half precision, each of them gets a half-precision copy; all other parameters stay fp32.
        """
        kinds = (nn.Linear, nn.Conv2d)
        return [f"{name}.weight" for name, module in self.named_modules() if isinstance(module, kinds)]

    def make_room(self, length: int) -> None:
        """Extend buffers that depend on the lengths of sequences, such as tables of positions, up to `length`.

        `forward` does this too, but then it would be measured with the first microbatch.
        """
