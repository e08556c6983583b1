"""Single requests of an observer: the run's state, or a checkpoint from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import typer
import uvloop

from peers.observer.visit import Visit, home_of, visiting
from peers.run.archived_run import describe_archive
from peers.run.home import COORDINATOR_HOME, Home
from peers.run.invite_text import read_invite
from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.core_loop import ProcessFailed
from peers.runtime.observer_request import ARCHIVE, STATUS, ObserverRequest, decode_facts
from peers.runtime.signals import treat_all_as_ctrl_c
from swarm.events.wording import printable
from swarm.net.invite import Invite
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.layout import shard_limit
from swarm.state.transfer import HEADER_BYTES

T = TypeVar("T")

_KEPT = 64
"""Number of versions that an observer's archive keeps. They cost only the observer's own disk space."""


def run(errand: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. If the coordinators refuse this observer for good, print the reason and raise
    typer.Exit.
    """
    treat_all_as_ctrl_c()  # so that the libp2p daemon is stopped and unfinished files are removed
    try:
        return uvloop.run(errand)
    except ProcessFailed as failure:
        typer.echo(f"error: {printable(str(failure))}", err=True)
        raise typer.Exit(failure.exit_code) from None


async def state_of_run(invite: Invite, home: Home) -> dict[str, Any]:
    """The state of the run (`state`, and `text` for people), from the leading coordinator or else from any. Raises the
    errors of `visiting`.
    """
    async with visiting(invite, home) as visit:
        answers: list[dict[str, Any]] = []
        for _ in visit.coordinators:
            answers.append(decode_facts(await visit.ask(ObserverRequest(STATUS).encode())))
            if (answers[-1].get("state") or {}).get("leads"):
                break
            visit.go_on()
        return answers[-1]


async def fetch_checkpoint(invite: Invite, home: Home, version: int | None) -> Path:
    """Fetch a checkpoint, by default the newest, into the archive of `home`. Returns the archive's folder.

    Shards that are already there are not fetched again. Raises StateError, OSError and the errors of `visiting`.
    """
    from swarm.models.kinds import parameter_shapes  # imports torch

    async with visiting(invite, home) as visit:
        await asyncio.to_thread(describe_archive, home.archive, visit.manifest, await visit.tokenizer())
        manifest = visit.manifest
        limits = [shard_limit(parameter_shapes(manifest.model, stage)) for stage in range(manifest.model.stages)]
        archive = Archive(home.archive, manifest.hash, manifest.model.stages, _KEPT, limits)
        wanted, hashes = _chosen(decode_facts(await visit.ask(ObserverRequest(ARCHIVE).encode())), version, archive)
        for stage, file_hash in enumerate(hashes):
            if not archive.holds(stage, wanted, file_hash):
                await _fetch(visit, archive, stage, wanted, file_hash)
        return archive.directory


def fetched(text: str, home: Path, archive: Path | None, version: int | None) -> Path:
    """The archive of an observer with a checkpoint in it, for commands that read archives.

    `text`: the invite, as the user gave it. `home`: the home that the user gave, or the default for readers of
    archives, which is a coordinator's home.
    """
    if archive is not None:
        raise typer.BadParameter("give an invite or an archive, not both", param_hint="--invite")
    invite = read_invite(text)
    kept_in = Home(home_of(invite, None if home == COORDINATOR_HOME else home))
    return run(fetch_checkpoint(invite, kept_in, version))


def _chosen(facts: dict[str, Any], version: int | None, archive: Archive) -> tuple[int, list[str]]:
    listed = facts.get("versions")
    found: dict[int, list[str]] = {}
    for name, hashes in listed.items() if isinstance(listed, dict) else ():
        if name.isdecimal() and _are_texts(hashes) and len(hashes) == archive.stages:
            found[int(name)] = hashes
    where = "the archive of the coordinator"
    if not found:
        raise StateError(where, "it contains no complete checkpoint yet")
    wanted = max(found) if version is None else version
    if wanted not in found:
        held = ", ".join(map(str, sorted(found)))
        raise StateError(where, f"it holds no complete version {wanted}; complete versions: {held}")
    return wanted, found[wanted]


def _are_texts(hashes: object) -> bool:
    return isinstance(hashes, list) and all(isinstance(each, str) for each in hashes)


async def _fetch(visit: Visit, archive: Archive, stage: int, version: int, file_hash: str) -> None:
    request = CheckpointRequest(stage, version).encode()

    async def from_one(peer: str) -> None:
        writer = archive.receive(stage, version, file_hash)
        try:
            async with aclosing(visit.chunks(peer, request, HEADER_BYTES + archive.limit(stage))) as chunks:
                async for chunk in chunks:
                    writer.feed(chunk)
            await asyncio.to_thread(writer.commit)
        finally:
            writer.abort()

    await visit.with_any(from_one)
