"""`swarm-peer generate`: continues a text with a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from peers.options import Archive, Home, Json, ObserverInvite, Version
from peers.run.home import COORDINATOR_HOME
from peers.run.home import Home as HomeFolder
from swarm.manifest import ManifestError


def command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The beginning of the text.")] = "The ",
    home: Home = COORDINATOR_HOME,
    archive: Archive = None,
    invite: ObserverInvite = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="DIR",
            help="Use this model, written by `export --format native`, instead of the archive.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Maximum number of tokens to add.")] = 64,
    temperature: Annotated[
        float,
        typer.Option("--temperature", min=0.0, help="0: always the likeliest token; 1: the model's distribution."),
    ] = 0.0,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            max=(1 << 63) - 1,
            help="Seed of the random choice of tokens, if the temperature is above 0.",
        ),
    ] = 0,
    special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--special-tokens/--no-special-tokens",
            help="Whether names of special tokens in PROMPT, such as <|im_start|>, become these tokens. "
            "Default: as in the texts of the run.",
            show_default=False,
        ),
    ] = None,
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Continue a text with a trained model, from the coordinator's archive or from an export."""
    from peers.run.archived_run import Refused, open_archived
    from swarm.data.tokenizer import Tokenizer
    from swarm.events.wording import printable_lines
    from swarm.state.exported import open_native
    from swarm.state.generate import generate
    from swarm.state.whole import Source

    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8: give it in this encoding", param_hint="PROMPT") from None
    refused = Refused()
    model: Source
    if export is None:
        if invite is not None:
            from peers.observer.errands import fetched

            archive = fetched(invite, home, archive, version)
        trained = open_archived(archive or HomeFolder(home).archive, version, refused)
        manifest, model, path, version = trained.manifest, trained.archive, trained.tokenizer, trained.version
    elif archive is not None or version is not None or invite is not None:
        raise typer.BadParameter("an export is one version of one model: give --export alone")
    else:
        exported = open_native(export)
        manifest, model, path = exported.manifest, exported.parameters, exported.tokenizer
    if manifest.data.kind != "text":
        raise ManifestError(f"{manifest.data.name} holds {manifest.data.kind}, not text")
    tokenizer = Tokenizer.load(path, manifest.data.special_tokens if special_tokens is None else special_tokens)
    text = generate(model, manifest, tokenizer, prompt, tokens, temperature, seed, version=version)
    if as_json:
        print(json.dumps({"version": version, "prompt": prompt, "text": text, "refused": refused.texts}))
    else:
        print(printable_lines(text))
