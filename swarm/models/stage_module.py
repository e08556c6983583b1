"""The interface of a stage of every kind of model: an nn.Module that knows its place in the pipeline."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swarm.manifest import ModelSection


class StageModule(nn.Module, abc.ABC):
    """One stage of a model. The frames over a boundary are (B, T, model.boundary_width) fp32."""

    def __init__(self, model: ModelSection, stage: int) -> None:
        super().__init__()
        self.first = stage == 0
        self.last = stage == model.stages - 1
        self.shared = int(model.shares_embedding and (self.first or self.last))
        """Number of its parameters that another stage holds too. They come first, in the same order in both."""
        self.recomputes_layers = False
        """Whether a graph holds only what goes into each layer: a backward then computes layer by layer again."""
        self.recomputes_within: Callable[[], AbstractContextManager[object]] = nullcontext
        """What it does so within, since torch leaves modes of functions behind."""

    @abc.abstractmethod
    def forward(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """From the input over the boundary before this stage to the output over the one after it; logits in the last
        stage.

        `x` is ids (B, T) int64 at stage 0. `tokens` are those ids, at any stage.
        """

    @abc.abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss summed over all targets, fp32 scalar, nats. labels (B, T): the ids after each of x."""

    def train_loss(self, x: Tensor, tokens: Tensor | None, labels: Tensor) -> Tensor:
        """The training loss: `loss_sum` of the last stage's output. A kind of model may compute it with less memory."""
        return self.loss_sum(self(x, tokens), labels)

    def layers(self) -> Iterable[nn.Module]:
        """The repeated modules, each of which is compiled, and computed again, separately. See `through`."""
        return ()

    def through(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """What `layer` makes of `inputs`: the same bits whether its graph is kept or computed again."""
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
        """Compile each layer at its first use, for the shapes that it gets then."""
        for layer in self.layers():
            layer.compile(dynamic=False)

    def matrices(self) -> list[str]:
        """Names of the parameters that only products with half-precision matrices read.

        Devices that multiply so keep a copy of each; all other parameters stay fp32.
        """
        kinds = (nn.Linear, nn.Conv2d)
        return [f"{name}.weight" for name, module in self.named_modules() if isinstance(module, kinds)]

    def reset_buffers(self) -> None:
        """Fill the buffers that are neither trained nor stored, on the module's device."""
