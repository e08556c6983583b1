"""The kinds of model that a run can train. To add one, write its file, add a row here, and its name in the manifest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from swarm.manifest import ModelSection
from swarm.models import llama, resnet
from swarm.models.stage_module import StageModule


@dataclass(frozen=True, slots=True)
class ModelKind:
    stage: Callable[[ModelSection, int], StageModule]
    initial_value: Callable[[str, torch.Size, ModelSection, int], Tensor]
    """(name, shape, model, seed) → initial value of a parameter, independent of the cuts."""


KINDS = {
    "llama": ModelKind(llama.LlamaStage, llama.initial_value),
    "resnet": ModelKind(resnet.ResNetStage, resnet.initial_value),
}
"""The kinds, by model.kind."""


def build_stage(
    model: ModelSection, stage: int, *, device: str | torch.device = "cpu", seed: int | None
) -> StageModule:
    """Stage `stage` of `model` on `device`, fp32, with its initial parameters.

    `seed` None: the parameters are not initialised, for counting on the "meta" device, or before a state is loaded.
    """
    if not 0 <= stage < model.stages:
        raise ValueError(f"stage {stage} does not exist: model.cuts = {list(model.cuts)} gives {model.stages} stages")
    kind = KINDS[model.kind]
    with torch.device(device), _NoInitialValues():
        module = kind.stage(model, stage)
    if seed is not None:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(kind.initial_value(name, parameter.shape, model, seed))
    return module


class _NoInitialValues(TorchFunctionMode):
    """Inside this context, torch's own initialisation is skipped, because we set initial values later.

    On the meta device, torch's initialisation imports its compiler, which takes two seconds and 40 MB. This would delay
    a standby just when its new stage waits for it.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def count_parameters(model: ModelSection, stage: int | None = None) -> int:
    """Number of parameters of one stage, or of the whole model (tied ones count once). Allocates no parameters."""
    stages = range(model.stages) if stage is None else (stage,)
    shapes = {name: shape for s in stages for name, shape in parameter_shapes(model, s).items()}
    return sum(math.prod(shape) for shape in shapes.values())


def parameter_shapes(model: ModelSection, stage: int) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of a stage, by name. Allocates no parameters."""
    module = build_stage(model, stage, device="meta", seed=None)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
