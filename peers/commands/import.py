"""`swarm-peer import`: makes a run that begins with a pretrained model.

The module's name is a Python keyword, so it is imported by name, like all commands.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peers.options import Json
from peers.run.run_toml import named_run, write_run_file
from swarm.events.wording import amount
from swarm.manifest import BatchSection, ManifestError, OptimizerSection, RunFile

if TYPE_CHECKING:
    from swarm.state.pretrained.model import PretrainedModel

RUN_FILE = "RUN.toml"
WRITTEN = ("parameters", "tokenizer.json", RUN_FILE)
"""The files in `--out`. The run file is written last: if it exists, the import is complete."""

LEARNING_RATE = 2e-5
"""Learning rate of fine-tuning: a fiftieth of the rate for training from scratch."""


def command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Hugging Face folder of a Llama, or a GGUF file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write: parameters, tokenizer.json, RUN.toml.")],
    stages: Annotated[int, typer.Option("--stages", min=1, help="Number of stages.")] = 2,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="The model's tokenizer.json, if SOURCE has no usable one.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--end-of-text",
            metavar="TOKEN",
            help="The special token that ends a text. Default: the one that the model's files name.",
        ),
    ] = None,
    untie: Annotated[
        bool,
        typer.Option("--untie", help="Train embedding and head separately, even if they are one matrix in SOURCE."),
    ] = False,
    name: Annotated[str, typer.Option("--name", help="Name of the run.")] = "fine-tuning",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier import in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Make a run that begins with a pretrained Llama: its parameters, its tokenizer and a commented RUN.toml.

    Reads safetensors and GGUF, nothing that could run code.
    """
    from peers.runtime.memory_limits import free_memory
    from peers.runtime.signals import treat_all_as_ctrl_c
    from swarm.atomic import atomic_file, write_whole
    from swarm.models import cuts
    from swarm.side_folder import side_folder
    from swarm.state.error import StateError
    from swarm.state.import_record import write_record
    from swarm.state.initial import write_initial
    from swarm.state.pretrained.same_logits import compare_logits
    from swarm.state.pretrained.source import open_pretrained

    path = out / RUN_FILE
    _refuse_to_lose(source, "SOURCE", out)
    if tokenizer is not None:
        _refuse_to_lose(tokenizer, "--tokenizer", out)
    _refuse_to_overwrite(out, force)
    found = open_pretrained(source, tokenizer, end)
    if untie and not found.tied:
        raise ManifestError(f"--untie: embedding and head of {source} are two matrices already; leave it out")
    if untie:
        found = found.untied()
    whole = found.section
    compared = compare_logits(source, found, free_memory())
    if stages > whole.layers:
        raise ManifestError(f"--stages {stages}: the model has {whole.layers} layers, a stage needs at least one")
    batch = BatchSection(sequence_length=min(BatchSection().sequence_length, whole.context))
    model = whole.model_copy(
        update={"cuts": cuts.propose_cuts(whole, stages, cuts.flop_costs(whole, batch.sequence_length))}
    )
    described = named_run(name)
    treat_all_as_ctrl_c()  # so that unfinished files are removed
    with side_folder(out, ".importing") as side:
        _refuse_to_overwrite(out, force)  # what came since the first look, or was moved back
        try:
            sha256 = write_initial(side.new / "parameters", found.tensors)
        except StateError as error:
            raise StateError(source, str(error)) from None
        write_record(side.new / "parameters", model, sha256, found.vocabulary)
        with atomic_file(side.new / "tokenizer.json") as file:
            write_whole(file, found.tokenizer)
        run = RunFile(
            run=described,
            model=model,
            batch=batch,
            optimizer=OptimizerSection(learning_rate=LEARNING_RATE),
            initial=RunFile.Initial(sha256=sha256),
        )
        write_run_file(side.new / RUN_FILE, run)
        side.publish(WRITTEN, _refuse_to_overwrite(out, force))
    if as_json:
        print(
            json.dumps(
                {
                    "path": str(path),
                    "sha256": sha256,
                    "cuts": model.cuts,
                    "parameters": _count(found),
                    "notes": [*found.notes, compared],
                }
            )
        )
        return
    print(f"wrote {out}: {_count(found):,} parameters, {amount(4 * _count(found))}, in {stages} stages")
    print(f"parameters SHA-256 {sha256}")
    for note in (*found.notes, compared):
        print(note)
    print(
        f"next: swarm-peer prepare --input TEXT --tokenizer {out / 'tokenizer.json'} --out {out / 'data'}; "
        f"then swarm-peer coordinate {path}"
    )


def _refuse_to_lose(read: Path, what: str, out: Path) -> None:
    """Refuse to read a file or folder that this import replaces. Raises ManifestError."""
    real = read.resolve()
    if real == out.resolve():
        raise ManifestError(f"--out {out} is {what} itself, whose tokenizer.json would be lost: choose another --out")
    for name in WRITTEN:
        if real.is_relative_to((out / name).resolve()):
            raise ManifestError(f"{what} {read} would be lost: this import writes {out / name}: choose another --out")


def _refuse_to_overwrite(out: Path, force: bool) -> list[str]:
    """The files of an earlier import in `out`, which the new one replaces, RUN.toml first. Raises ManifestError if
    there are any and `force` is not set.
    """
    there = [name for name in reversed(WRITTEN) if os.path.lexists(out / name)]
    if there and not force:
        raise ManifestError(f"{out / there[0]} exists: choose another --out, or overwrite it with --force")
    return there


def _count(found: PretrainedModel) -> int:
    from swarm.models.kinds import count_parameters

    return count_parameters(found.section)
