"""`swarm-peer export`: writes a trained model as files that other programs read."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from peers.options import Archive, Home, Json, ObserverInvite, Version
from peers.run.home import COORDINATOR_HOME
from peers.run.home import Home as HomeFolder
from swarm.events.wording import amount, printable


class Format(enum.StrEnum):
    HF = "hf"
    NATIVE = "native"


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    home: Home = COORDINATOR_HOME,
    archive: Archive = None,
    invite: ObserverInvite = None,
    kind: Annotated[
        Format, typer.Option("--format", help="hf: for transformers.LlamaForCausalLM; native: for `generate --export`.")
    ] = Format.HF,
    version: Version = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is already in OUT.")] = False,
    as_json: Json = False,
) -> None:
    """Write a trained model as files that other programs read, from the coordinator's archive."""
    from peers.run.archived_run import Refused, open_archived
    from peers.runtime.signals import treat_all_as_ctrl_c
    from swarm.state.export import export_hf, export_native

    refused = Refused()
    if invite is not None:
        from peers.observer.errands import fetched

        archive = fetched(invite, home, archive, version)
    trained = open_archived(archive or HomeFolder(home).archive, version, refused)
    treat_all_as_ctrl_c()  # so that unfinished files are removed
    export = export_hf if kind is Format.HF else export_native
    written = export(trained.archive, trained.manifest, trained.tokenizer, out, trained.version, force=force)
    if as_json:
        facts = {"directory": str(out), "format": kind, "version": trained.version, "nbytes": written.nbytes}
        print(json.dumps({**facts, "refused": refused.texts}))
    else:
        print(f"wrote version {trained.version} to {out}: {amount(written.nbytes)}")
        data = trained.manifest.data
        print(printable(f"the text it was trained on: {data.name}, licence {data.licence or 'not stated'}"))
