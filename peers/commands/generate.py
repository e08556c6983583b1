"""`swarm-peer generate`: text from a trained model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from peers.home import COORDINATOR_HOME
from peers.home import Home as HomeFolder
from peers.options import Archive, Home, Json, Version
from swarm.manifest import ManifestError


def command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text begins with.")] = "The ",
    home: Home = COORDINATOR_HOME,
    archive: Archive = None,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Most tokens to add.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: the likeliest token each time; 1: as the model says.")
    ] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="Decides, when the temperature is above 0.")
    ] = 0,
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Continue a text with a trained model, from the coordinator's archive."""
    from peers.archived_run import Refused, open_archived
    from swarm.data.tokenizer import Tokenizer
    from swarm.state.generate import generate

    refused = Refused()
    trained = open_archived(archive or HomeFolder(home).archive, version, refused)
    if trained.manifest.data.kind != "text":
        raise ManifestError(f"{trained.manifest.data.name} holds {trained.manifest.data.kind}: there is no text in it")
    tokenizer = Tokenizer.load(trained.tokenizer)
    text = generate(
        trained.archive, trained.manifest, tokenizer, prompt, tokens, temperature, seed, version=trained.version
    )
    if as_json:
        print(json.dumps({"version": trained.version, "prompt": prompt, "text": text, "refused": refused.texts}))
    else:
        print(text)
