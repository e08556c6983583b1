"""A new run: its RUN.toml from a preset and the options of `swarm-peer init`, cut into stages of equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers.run.coding import coding
from peers.run.recipe import suited, suited_kind
from peers.run.run_toml import named_run
from swarm.manifest import (
    BatchSection,
    CodecSection,
    EvaluationSection,
    ManifestError,
    ModelSection,
    OptimizerSection,
    RunFile,
    SumSection,
    apply_overrides,
    explain,
    read_run_tree,
)


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is wanted of a run. `made` makes it."""

    preset: str
    stages: int
    name: str
    where: str
    """The file's name, for error messages."""
    directory: str
    """The folder of the corpus, relative to the file."""
    subspace_dim: int | None = None
    narrowed: Mapping[str, object] = field(default_factory=dict)
    """Keys of [model] for a boundary module."""
    codec: str | None = None
    """The name of its coding (coding.py). None: as by default."""
    averaging: str | None = None
    overrides: Sequence[str] = ()

    @property
    def set_keys(self) -> frozenset[str]:
        """The keys that `overrides` set, as "table.key"."""
        return frozenset(override.partition("=")[0].strip() for override in self.overrides)

    def made(self, *, measure: bool) -> tuple[RunFile, list[float]]:
        """The run, and each stage's share of the cost. `measure`: balance measured seconds instead of counted FLOP.

        Imports torch. Raises ManifestError.
        """
        model, stages = _preset(self.preset), self.stages
        run = RunFile(
            run=named_run(self.name),
            model=model,
            batch=BatchSection() if model.kind == "llama" else BatchSection(sequences=16, sequence_length=64),
            codec=CodecSection() if self.codec is None else coding(self.codec).section,
            sums=SumSection() if self.averaging is None else SumSection(averaging=self.averaging),
            optimizer=OptimizerSection(kind=suited_kind(model)),
            evaluation=EvaluationSection() if model.kind == "llama" else EvaluationSection(sample_tokens=0),
            data=RunFile.Data(directory=self.directory),
        )
        means = {"token_means": True} if self.codec is not None and coding(self.codec).token_means else {}
        shape = _shape(model, self.preset, stages, self.subspace_dim, {**self.narrowed, **means})
        tree = {**run.model_dump(mode="json"), "model": shape.model_dump(mode="json")}
        tail = tree["model"].pop("tail_layers")
        apply_overrides(tree, self.overrides)
        _check_shape(tree["model"], self.preset, stages, self.subspace_dim)
        whole_tail = self.subspace_dim is not None and "tail_layers" not in tree["model"]
        tree["model"].setdefault("tail_layers", tail)
        run = read_run_tree(tree, self.where)
        _check_codecs(run)
        cut, shares = _cut(run, stages, measure, whole_tail)
        if run.model.cuts not in (shape.cuts, cut.cuts):
            raise ManifestError(
                f"--set model.cuts={list(run.model.cuts)}: init computes the cuts itself; change them in "
                f"{self.where} afterwards"
            )
        mine = {key: value for key, value in suited(run).items() if f"optimizer.{key}" not in self.set_keys}
        optimizer = run.optimizer.model_copy(update=mine)
        return run.model_copy(update={"model": cut, "optimizer": optimizer}), shares


def _preset(name: str) -> ModelSection:
    from swarm.models import presets

    if name not in presets.NAMES:
        raise ManifestError(f"--preset {name}: no such preset; choose one of {', '.join(presets.NAMES)}")
    return presets.preset(name, stages=1)


def _shape(
    model: ModelSection, preset: str, stages: int, subspace_dim: int | None, narrowed: Mapping[str, object]
) -> ModelSection:
    """The preset with the changes of the options, unchecked. Its cuts have the right number; `_cut` moves them."""
    model = model.model_copy(update={"cuts": tuple(range(1, stages)), **narrowed})
    if subspace_dim is None:
        return model
    if model.kind != "llama":
        raise ManifestError(f"--subspace-dim {subspace_dim}: preset {preset} is not a language model; leave this out")
    # one layer of tail during the cutting: it becomes the whole last stage
    return model.model_copy(update={"residual": "subspace", "subspace_dim": subspace_dim, "tail_layers": 1})


def _check_shape(model: dict[str, Any], preset: str, stages: int, subspace_dim: int | None) -> None:
    """Check for errors in the options, before errors in keys are reported. `model` is not checked yet."""
    layers, dim = model["layers"], model["dim"]
    if isinstance(layers, int) and stages > layers > 0:
        raise ManifestError(f"--stages {stages}: preset {preset} has {layers} layers, a stage needs at least one")
    if isinstance(dim, int) and subspace_dim is not None and subspace_dim >= dim:
        raise ManifestError(
            f"--subspace-dim {subspace_dim}: preset {preset} has model.dim = {dim}; give a smaller number"
        )


def _check_codecs(run: RunFile) -> None:
    """Refuse codecs that no peer has, before anyone waits for a measurement."""
    from swarm import codecs
    from swarm.codecs import ladder

    try:
        forward, backward = ladder.names(run)
        codecs.pair(forward[0], backward[0])
    except codecs.UnknownCodec as error:
        raise ManifestError(str(error)) from None


def _cut(run: RunFile, stages: int, measure: bool, whole_tail: bool) -> tuple[ModelSection, list[float]]:
    """The run's model with its cuts, and each stage's share of the cost. `whole_tail`: the last stage consists of the
    tail.
    """
    from swarm.models import cuts

    model, batch = run.model, run.batch
    if measure:
        costs = cuts.measure_costs(model, batch.sequences, batch.sequence_length)
    else:
        costs = cuts.flop_costs(model, batch.sequence_length)
    model = model.model_copy(update={"cuts": cuts.propose_cuts(model, stages, costs)})
    tail = len(model.layer_range(stages - 1)) if whole_tail else model.tail_layers
    try:
        model = ModelSection(**{**model.model_dump(), "tail_layers": tail})
    except ValueError as error:
        raise ManifestError(explain(error)) from None
    each = cuts.stage_costs(model, costs)
    return model, [cost / sum(each) for cost in each]
