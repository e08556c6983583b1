"""Layout: the place of each parameter in a stage's gradient, which is one flat vector in parameter order.

The vector of the last stage has one more element, the sum of losses, so that the loss is reduced exactly once, together
with its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage
from swarm.models.token_means import is_token_means


@dataclass(frozen=True)
class Layout:
    """The place of each parameter of a stage in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    with_loss: bool
    """True for the last stage: the last element is the sum of losses, which is not part of the norm."""
    shared: int = 0
    """Number of parameters, from the first on, that another stage holds too: the sums of both stages are added."""

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor], *, with_loss: bool, shared: int = 0) -> Layout:
        return cls(tuple(parameters), tuple(p.shape for p in parameters.values()), with_loss, shared)

    @classmethod
    def of_stage(cls, model: ModelSection, stage: int) -> Layout:
        """The layout of one stage of a model. Allocates no parameters."""
        module = build_stage(model, stage, device="meta", seed=None)
        return cls.of(dict(module.named_parameters()), with_loss=module.last, shared=module.shared)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> tuple[slice, ...]:
        ends = tuple(accumulate(self.sizes))
        return tuple(slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True))

    @property
    def length(self) -> int:
        """Number of elements of the flat vector."""
        return sum(self.sizes) + self.with_loss

    @property
    def shared_length(self) -> int:
        """Number of elements of the shared parameters. The flat vector of the other stage starts with them too."""
        return sum(self.sizes[: self.shared])

    @property
    def counted(self) -> tuple[slice, ...]:
        """The parts of the flat vector that count for the norm. Shared parameters count only in the first stage. Sums
        for token means do not count, because they are no gradients.
        """
        first = self.shared if self.with_loss else 0
        pairs = zip(self.names[first:], self.slices[first:], strict=True)
        return tuple(part for name, part in pairs if not is_token_means(name))
