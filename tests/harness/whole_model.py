"""A model as a list of its stages, for tests that build, inspect and run it."""

from torch import Tensor, nn

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage
from swarm.models.stage_module import StageModule


def build(model: ModelSection, seed: int = 3) -> list[StageModule]:
    return [build_stage(model, stage, seed=seed) for stage in range(model.stages)]


def parameters(modules: list[StageModule]) -> dict[str, nn.Parameter]:
    return {name: p for module in modules for name, p in module.named_parameters()}


def run(modules: list[StageModule], ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Run the model. Returns the logits, and what crossed each boundary."""
    crossed, x = [], ids
    for module in modules:
        x = module(x, ids)
        crossed.append(x)
    return x, crossed[:-1]
