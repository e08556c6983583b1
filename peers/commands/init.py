"""`swarm-peer init`: writes a commented RUN.toml from a preset, cut into stages of equal cost."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peers.options import Json, check_written, parse_line
from peers.run.forecast import Line
from peers.run.new_run import NewRun
from peers.run.run_toml import write_run_file
from swarm.manifest import ManifestError, RunFile

if TYPE_CHECKING:
    from peers.run.line_choice import Choice


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
        str,
        typer.Option(
            "--preset",
            help="A language model of this size: 1m, 5m, 15m, 40m, 125m, 350m, 1b. Or digits, a classifier of images.",
        ),
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
        bool,
        typer.Option(
            "--measure/--no-measure", help="Balance the stages by measured seconds, or by counted operations."
        ),
    ] = True,
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "swarm",
    data: Annotated[Path, typer.Option("--data", help="Folder of the prepared corpus, relative to the file.")] = Path(
        "data"
    ),
    line: Annotated[
        Line | None,
        typer.Option(
            "--line",
            parser=parse_line,
            metavar="DOWN[/UP],DELAY",
            help="Choose width, codec and averaging for the peers' internet lines, such as 80Mbit/20Mbit,50ms: those "
            "that reach the same loss first (docs/averaging.md).",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="CARD:COUNT,…",
            help="With --line: the peers' cards, such as rtx4090:4,rtx3060:8. Default: processors like this one, "
            "measured.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE",
            help="Replace a value of the preset; may be repeated. The cuts are computed for the changed model.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented RUN.toml for a new run: a model preset, cut into stages of equal cost."""
    check_written(path, "RUN.toml")
    if path.exists() and not force:
        raise ManifestError(f"{path} exists: choose another name, or overwrite it with --force")
    if gpu is not None and line is None:
        raise typer.BadParameter("it has an effect only with --line", param_hint="--gpu")
    new = NewRun(
        preset=preset,
        stages=stages,
        name=name,
        where=str(path),
        directory=data.as_posix(),
        subspace_dim=subspace_dim,
        narrowed=_narrowed(boundary, boundary_dim, subspace_dim),
        codec=None if compress is None else compress.value,
        averaging=None if compress is None else compress.value,
        overrides=tuple(overrides or ()),
    )
    choice = None if line is None else _chosen(new, line, gpu)
    run, shares = (new if choice is None else choice.new).made(measure=measure)
    why = () if choice is None else choice.reasons
    write_run_file(path, run, why)
    if as_json:
        told = {"path": str(path), "cuts": run.model.cuts, "shares": shares, "measured": measure}
        print(json.dumps(told if choice is None else {**told, "choice": choice.as_json()}))
    else:
        _show(path, preset, run, shares, measure)
        for reason in why:
            print(reason)


def _narrowed(boundary: Boundary | None, boundary_dim: int | None, subspace_dim: int | None) -> dict[str, object]:
    """The keys of [model] that follow from --boundary and --boundary-dim."""
    if boundary is None:
        if boundary_dim is not None:
            raise ManifestError(f"--boundary-dim {boundary_dim} needs --boundary KIND")
        return {}
    if boundary_dim is None:
        raise ManifestError(f"--boundary {boundary} needs a width: add --boundary-dim, such as model.dim ÷ 16")
    if subspace_dim is not None:
        raise ManifestError(
            f"--boundary {boundary} and --subspace-dim {subspace_dim} exclude each other: leave one out"
        )
    return {"boundary": boundary.value, "boundary_dim": boundary_dim}


def _chosen(new: NewRun, line: Line, cards: str | None) -> Choice:
    """The run with what suits the line best."""
    from peers.run.cards import UnknownCard
    from peers.run.line_choice import choose

    try:
        return choose(new, line, cards)
    except UnknownCard as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from None


def _show(path: Path, preset: str, run: RunFile, shares: list[float], measured: bool) -> None:
    from swarm.data.folder import CORPUS_FILE

    model = run.model
    how = "measured" if measured else "counted"
    print(f"wrote {path}: preset {preset} in {model.stages} stages, {how} cost")
    for stage, share in enumerate(shares):
        layers = model.layer_range(stage)
        print(f"  stage {stage}: layers {layers.start}–{layers.stop - 1}, {share:.0%} of the work")
    corpus = path.parent / run.data.directory
    if (corpus / CORPUS_FILE).exists():
        print(f"next: swarm-peer coordinate {path} --dry-run")
        return
    what = f"--vocab-size {model.vocab_size}" if model.kind == "llama" else "--images digits"
    print(f"next: swarm-peer prepare {what} --out {corpus}")
