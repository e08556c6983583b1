"""`swarm-peer init`: writes a commented RUN.toml from a preset, cut into stages of equal cost."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from peers.options import Json
from peers.run.run_toml import named_run, write_run_file
from swarm.manifest import (
    BatchSection,
    CodecSection,
    EvaluationSection,
    ManifestError,
    ModelSection,
    RunFile,
    SumSection,
    apply_overrides,
    explain,
    read_run_tree,
)


class Compression(enum.StrEnum):
    INT8 = "int8"
    INT4 = "int4"


class Boundary(enum.StrEnum):
    BOTTLENECK = "bottleneck"
    MAXOUT = "maxout"
    PROJECTOR = "projector"


def command(
    path: Annotated[Path, typer.Argument(metavar="[RUN.toml]", help="File to write.")] = Path("RUN.toml"),
    preset: Annotated[
        str, typer.Option("--preset", help="Size of the model: 1m, 5m, 15m, 40m, 125m, 350m, 1b; or digits: images.")
    ] = "5m",
    stages: Annotated[int, typer.Option("--stages", min=1, help="Number of stages.")] = 4,
    subspace_dim: Annotated[
        int | None,
        typer.Option("--subspace-dim", min=1, help="Values per token at each boundary (docs/subspace.md)."),
    ] = None,
    boundary: Annotated[
        Boundary | None,
        typer.Option("--boundary", help="Narrow every boundary by trained modules (docs/boundaries.md)."),
    ] = None,
    boundary_dim: Annotated[
        int | None,
        typer.Option("--boundary-dim", min=1, help="Values per token at a narrow boundary; needs --boundary."),
    ] = None,
    compress: Annotated[
        Compression | None,
        typer.Option("--compress", help="One codec for activations, their gradients and sums (docs/averaging.md)."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Balance measured seconds, or counted operations.")
    ] = True,
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "swarm",
    data: Annotated[Path, typer.Option("--data", help="Folder of the prepared corpus, relative to the file.")] = Path(
        "data"
    ),
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE",
            help="Write another value than the preset's; may be repeated. Cuts are proposed for the result.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented RUN.toml for a new run: a model preset, cut into stages of equal cost."""
    if path.exists() and not force:
        raise ManifestError(f"{path} exists: choose another name, or overwrite it with --force")
    narrowed = _narrowed(boundary, boundary_dim, subspace_dim)
    model = _preset(preset)
    run = RunFile(
        run=named_run(name),
        model=model,
        batch=_batch(model),
        codec=CodecSection() if compress is None else CodecSection(forward=compress.value, backward=compress.value),
        sums=SumSection() if compress is None else SumSection(averaging=compress.value),
        evaluation=EvaluationSection() if model.kind == "llama" else EvaluationSection(sample_tokens=0),
        data=RunFile.Data(directory=data.as_posix()),
    )
    shape = _shape(model, preset, stages, subspace_dim, narrowed)
    tree = {**run.model_dump(mode="json"), "model": shape.model_dump(mode="json")}
    tail = tree["model"].pop("tail_layers")
    apply_overrides(tree, overrides or ())
    _check_shape(tree["model"], preset, stages, subspace_dim)
    whole_tail = subspace_dim is not None and "tail_layers" not in tree["model"]
    tree["model"].setdefault("tail_layers", tail)
    run = read_run_tree(tree, str(path))
    cut, shares = _cut(run, stages, measure, whole_tail)
    if run.model.cuts not in (shape.cuts, cut.cuts):
        raise ManifestError(
            f"--set model.cuts={list(run.model.cuts)}: init proposes the cuts itself, change them in {path}"
        )
    run = run.model_copy(update={"model": cut})
    write_run_file(path, run)
    if as_json:
        print(json.dumps({"path": str(path), "cuts": run.model.cuts, "shares": shares, "measured": measure}))
    else:
        _show(path, preset, run, shares, measure)


def _narrowed(boundary: Boundary | None, boundary_dim: int | None, subspace_dim: int | None) -> dict[str, object]:
    """The keys of [model] that follow from --boundary and --boundary-dim."""
    if boundary is None:
        if boundary_dim is not None:
            raise ManifestError(f"--boundary-dim {boundary_dim} needs --boundary KIND")
        return {}
    if boundary_dim is None:
        raise ManifestError(f"--boundary {boundary} needs a width: add --boundary-dim, such as model.dim ÷ 16")
    if subspace_dim is not None:
        raise ManifestError(f"--boundary {boundary} and --subspace-dim {subspace_dim} exclude each other: drop one")
    return {"boundary": boundary.value, "boundary_dim": boundary_dim}


def _preset(name: str) -> ModelSection:
    from swarm.models import presets

    if name not in presets.NAMES:
        raise ManifestError(f"--preset {name}: no such preset; there are {', '.join(presets.NAMES)}")
    return presets.preset(name, stages=1)


def _shape(
    model: ModelSection, preset: str, stages: int, subspace_dim: int | None, narrowed: dict[str, object]
) -> ModelSection:
    """The preset with the changes of the options, unchecked, with placeholder cuts for the number of stages."""
    model = model.model_copy(update={"cuts": tuple(range(1, stages)), **narrowed})
    if subspace_dim is None:
        return model
    if model.kind != "llama":
        raise ManifestError(f"--subspace-dim {subspace_dim}: preset {preset} is not a language model, leave it out")
    # one layer of tail during the cutting: it becomes the whole last stage
    return model.model_copy(update={"residual": "subspace", "subspace_dim": subspace_dim, "tail_layers": 1})


def _check_shape(model: dict[str, Any], preset: str, stages: int, subspace_dim: int | None) -> None:
    """Check for errors in the options, before errors in keys are reported. `model` is not checked yet."""
    layers, dim = model["layers"], model["dim"]
    if isinstance(layers, int) and stages > layers > 0:
        raise ManifestError(f"--stages {stages}: preset {preset} has {layers} layers, a stage needs at least one")
    if isinstance(dim, int) and subspace_dim is not None and subspace_dim >= dim:
        raise ManifestError(f"--subspace-dim {subspace_dim}: preset {preset} has model.dim = {dim}, stay below")


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


def _batch(model: ModelSection) -> BatchSection:
    return BatchSection() if model.kind == "llama" else BatchSection(sequences=16, sequence_length=64)


def _show(path: Path, preset: str, run: RunFile, shares: list[float], measured: bool) -> None:
    model = run.model
    how = "measured" if measured else "counted"
    print(f"wrote {path}: preset {preset} in {model.stages} stages, {how} cost")
    for stage, share in enumerate(shares):
        layers = model.layer_range(stage)
        print(f"  stage {stage}: layers {layers.start}–{layers.stop - 1}, {share:.0%} of the work")
    what = f"--vocab-size {model.vocab_size}" if model.kind == "llama" else "--images digits"
    print(f"next: swarm-peer prepare {what} --out {path.parent / run.data.directory}")
