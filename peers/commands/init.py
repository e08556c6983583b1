"""`swarm-peer init`: a commented RUN.toml from a preset, cut where stages cost the same."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from peers.options import Json
from peers.run_toml import render
from swarm.manifest import (
    BatchSection,
    CodecSection,
    EvaluationSection,
    ManifestError,
    ModelSection,
    RunFile,
    RunSection,
    SumSection,
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
    stages: Annotated[int, typer.Option("--stages", min=1, help="Into how many stages to cut it.")] = 4,
    subspace_dim: Annotated[
        int | None,
        typer.Option("--subspace-dim", min=1, help="Send so few values a token over each boundary (docs/subspace.md)."),
    ] = None,
    boundary: Annotated[
        Boundary | None,
        typer.Option("--boundary", help="Narrow every boundary by trained modules (docs/boundaries.md)."),
    ] = None,
    boundary_dim: Annotated[
        int | None, typer.Option("--boundary-dim", min=1, help="To so many values a token; wants --boundary.")
    ] = None,
    compress: Annotated[
        Compression | None,
        typer.Option("--compress", help="In one codec: activations, their gradients, sums (docs/averaging.md)."),
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
            help="Write another value than the proposed one; may be repeated. Cuts stay as proposed.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented RUN.toml for a new run: a model preset, cut where the stages cost the same."""
    if path.exists() and not force:
        raise ManifestError(f"{path} exists: choose another name, or overwrite it with --force")
    narrowed = _narrowed(boundary, boundary_dim, subspace_dim)
    model, shares = _propose(preset, stages, subspace_dim, narrowed, measure)
    try:
        run = RunFile(
            run=RunSection(name=name),
            model=model,
            batch=_batch(model),
            codec=CodecSection() if compress is None else CodecSection(forward=compress.value, backward=compress.value),
            sums=SumSection() if compress is None else SumSection(averaging=compress.value),
            evaluation=EvaluationSection() if model.kind == "llama" else EvaluationSection(sample_tokens=0),
            data=RunFile.Data(directory=data.as_posix()),
        )
    except ValueError as error:
        raise ManifestError(f"--name {name!r}: {error}") from None
    run = read_run_tree(run.model_dump(mode="json"), str(path), overrides or ())
    if run.model.cuts != model.cuts:
        raise ManifestError(
            f"--set model.cuts={list(run.model.cuts)}: cuts are what init proposes, change them in {path}"
        )
    path.write_text(render(run), encoding="utf-8")
    if as_json:
        print(json.dumps({"path": str(path), "cuts": run.model.cuts, "shares": shares, "measured": measure}))
    else:
        _show(path, preset, run.model, shares, measure, data)


def _narrowed(boundary: Boundary | None, boundary_dim: int | None, subspace_dim: int | None) -> dict[str, object]:
    """Keys of [model] that --boundary and --boundary-dim stand for."""
    if boundary is None:
        if boundary_dim is not None:
            raise ManifestError(f"--boundary-dim {boundary_dim} means nothing alone: say --boundary KIND as well")
        return {}
    if boundary_dim is None:
        raise ManifestError(f"--boundary {boundary} needs a width: add --boundary-dim, such as model.dim ÷ 16")
    if subspace_dim is not None:
        raise ManifestError(f"--boundary {boundary} and --subspace-dim {subspace_dim} exclude each other: drop one")
    return {"boundary": boundary.value, "boundary_dim": boundary_dim}


def _propose(
    preset: str,
    stages: int,
    subspace_dim: int | None,
    narrowed: dict[str, object],
    measure: bool,
) -> tuple[ModelSection, list[float]]:
    """The model with its cuts, and each stage's share of the cost."""
    from swarm.models import cuts, presets

    if preset not in presets.NAMES:
        raise ManifestError(f"--preset {preset}: no such preset; there are {', '.join(presets.NAMES)}")
    whole = presets.preset(preset, stages=1)
    batch = _batch(whole)
    if subspace_dim is not None:
        if whole.kind != "llama":
            raise ManifestError(f"--subspace-dim {subspace_dim}: preset {preset} is no language model, leave it out")
        if subspace_dim >= whole.dim:
            raise ManifestError(
                f"--subspace-dim {subspace_dim}: preset {preset} has model.dim = {whole.dim}, stay below"
            )
        # one layer of tail while cutting: it becomes the whole last stage
        whole = whole.model_copy(update={"residual": "subspace", "subspace_dim": subspace_dim, "tail_layers": 1})
    if stages > whole.layers:
        raise ManifestError(f"--stages {stages}: preset {preset} has {whole.layers} layers, a stage needs at least one")
    if measure:
        costs = cuts.measure_costs(whole, batch.sequences, batch.sequence_length)
    else:
        costs = cuts.flop_costs(whole, batch.sequence_length)
    model = whole.model_copy(update={"cuts": cuts.propose_cuts(whole, stages, costs)})
    if subspace_dim is not None:
        model = model.model_copy(update={"tail_layers": len(model.layer_range(stages - 1))})
    if narrowed:
        try:
            model = ModelSection(**{**model.model_dump(), **narrowed})
        except ValueError as error:
            raise ManifestError(f"preset {preset} in {stages} stages: {explain(error)}") from None
    each = cuts.stage_costs(model, costs)
    return model, [cost / sum(each) for cost in each]


def _batch(model: ModelSection) -> BatchSection:
    return BatchSection() if model.kind == "llama" else BatchSection(sequences=16, sequence_length=64)


def _show(path: Path, preset: str, model: ModelSection, shares: list[float], measured: bool, data: Path) -> None:
    how = "measured" if measured else "counted"
    print(f"wrote {path}: preset {preset} in {model.stages} stages, {how} cost")
    for stage, share in enumerate(shares):
        layers = model.layer_range(stage)
        print(f"  stage {stage}: layers {layers.start}–{layers.stop - 1}, {share:.0%} of the work")
    what = f"--vocab-size {model.vocab_size}" if model.kind == "llama" else "--images digits"
    print(f"next: swarm-peer prepare {what} --out {path.parent / data}")
