"""Answers the requests of observers. These requests change nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

from peers.coordinator.mirror import chunk_of
from peers.run.home import Home
from peers.runtime.checkpoint_request import CheckpointRequest, RequestError, checkpoint_transfer
from peers.runtime.observer_request import (
    ARCHIVE,
    LOG,
    MAX_PART_BYTES,
    STATUS,
    TOKENIZER,
    ObserverRequest,
    ObserverRequestError,
    encode_part,
)
from swarm.data.folder import TOKENIZER_FILE
from swarm.net.bulk import BulkError, Transfer
from swarm.protocol.ids import Actor
from swarm.state.archive import Archive
from swarm.state.error import StateError

MOST_VERSIONS = 64


class Gallery:
    """Answers observers for one coordinator. `me`: its peer id; `others`: peer ids of the group's other coordinators.

    `status()`: the state of the run, as the organiser's programs get it.
    """

    def __init__(
        self, home: Home, archive: Archive, me: str, others: Collection[str], status: Callable[[], dict[str, Any]]
    ) -> None:
        self._home = home
        self._archive = archive
        self._me = me
        self._others = frozenset(others)
        self._status = status

    async def answer(self, observer: Actor, raw: bytes) -> Transfer:
        """Answer an observer. Raises BulkError to refuse."""
        try:
            request = ObserverRequest.decode(raw)
            if request is None:
                return await asyncio.to_thread(archived, self._archive, CheckpointRequest.decode(raw))
        except (ObserverRequestError, RequestError) as error:
            raise BulkError(str(error)) from None
        if request.what == STATUS:
            return _facts(self._status())
        if request.what == LOG:
            return Transfer.of(await asyncio.to_thread(self._part, request))
        if request.what == ARCHIVE:
            return _facts(await asyncio.to_thread(self._versions))
        if request.what == TOKENIZER:
            return Transfer.of(await asyncio.to_thread(self._tokenizer))
        raise BulkError("observers may see the status, the events and the archive")

    def _part(self, request: ObserverRequest) -> bytes:
        if request.of == self._me:
            log = self._home.events
        elif request.of in self._others:
            log = self._home.mirrors / f"{request.of}.jsonl"
        else:
            raise BulkError("that is no coordinator of this run")
        try:
            if request.of != self._me and (not log.exists() or log.stat().st_size < request.offset):
                return b""  # this coordinator's copy is behind the observer's
            return encode_part(chunk_of(log, request.want, MAX_PART_BYTES))
        except OSError as error:
            raise BulkError(f"the event log cannot be read: {error.strerror}") from None

    def _versions(self) -> dict[str, Any]:
        archive, found = self._archive, {}
        for version in archive.complete_versions()[-MOST_VERSIONS:]:
            try:
                found[str(version)] = [archive.checkpoint(stage, version).hash for stage in range(archive.stages)]
            except StateError:
                continue  # the file was removed just now
        return {"versions": found}

    def _tokenizer(self) -> bytes:
        try:
            return (self._archive.directory / TOKENIZER_FILE).read_bytes()
        except FileNotFoundError:
            return b""


def archived(archive: Archive, request: CheckpointRequest) -> Transfer:
    """The transfer of an archived checkpoint. Raises BulkError."""
    try:
        checkpoint = archive.checkpoint(request.stage, request.version)
    except StateError as error:
        raise BulkError(str(error)) from None
    return checkpoint_transfer(checkpoint, archive.run_hash)


def _facts(facts: dict[str, Any]) -> Transfer:
    return Transfer.of(json.dumps(facts, separators=(",", ":")).encode())
