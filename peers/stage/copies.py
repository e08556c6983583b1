"""Copies of the state that a peer trains, for peers that fetch a whole version. Simultaneous requests share one copy.

Copies lie on disk while they are fetched. They are taken rarely enough that requests cannot keep a peer from
training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from peers.runtime.state_request import StateRequest
from peers.stage.copying import Engine, Log, copy_to
from swarm.net.bulk import is_overdue
from swarm.protocol.ids import Actor
from swarm.state.error import StateError
from swarm.state.folder import Checkpoint
from swarm.state.transfer import iter_file_chunks

MAX_COPIES = 2
"""Number of copies at the same time: of the version that most requests want, and of one that is still being read."""
COPYING = 0.1
"""The fraction of its time that a peer may spend on copies."""
MAX_REST_S = 10.0
PAUSE_S = 2.0
"""Seconds during which a peer that left a copy before its end gets no other copy."""


class Copies:
    """Used in one event loop. `folder` exists, and its owner empties it before a process begins."""

    def __init__(self, run_hash: str, folder: Path, emit: Log) -> None:
        self._run_hash = run_hash
        self._folder = folder
        self._emit = emit
        self._held: dict[int, _Copy] = {}
        """By version, while they are fetched."""
        self._next_at = 0.0
        self._broke_off: dict[str, float] = {}
        """{peer id: when}, for PAUSE_S"""

    async def serve(self, engine: Engine, request: StateRequest, requester: Actor) -> AsyncGenerator[bytes, None]:
        """The chunks of a transfer (see swarm/state/transfer.py). Raises StateError: the state is not available."""
        now = time.monotonic()
        self._broke_off = {peer: at for peer, at in self._broke_off.items() if now - at < PAUSE_S}
        if requester.peer in self._broke_off:
            raise StateError("state", f"you left the last copy before its end: ask again in {PAUSE_S:g} s")
        copy = self._of(engine, request, now)
        reading = _Reading(now)
        copy.readings.append(reading)
        try:
            chunks = iter_file_chunks(await asyncio.shield(copy.taking), self._run_hash)
            yield next(chunks)
            for chunk in chunks:
                reading.nbytes += len(chunk)
                yield chunk
                if copy.given_up:
                    raise StateError("state", "other peers ask for a newer version, and this copy took too long")
        except GeneratorExit:
            self._broke_off[requester.peer] = time.monotonic()
            raise
        finally:
            copy.readings.remove(reading)
            if not copy.readings:
                copy.remove()
                if self._held.get(request.version) is copy:
                    del self._held[request.version]

    def may_be_taken(self, now: float) -> bool:
        """Whether the last copy was taken long enough ago."""
        return now >= self._next_at

    def rest(self, began: float) -> None:
        """A copy was taken: wait ten times as long before the next one."""
        now = time.monotonic()
        self._next_at = now + min(MAX_REST_S, (now - began) / COPYING)

    def forget(self) -> None:
        """Another state is loaded, and versions count anew. Current readers continue."""
        self._held.clear()

    def _of(self, engine: Engine, request: StateRequest, now: float) -> _Copy:
        """The copy of that version; a new one if there is room. Raises StateError."""
        copy = self._held.get(request.version)
        if copy is not None:
            return copy
        if len(self._held) >= MAX_COPIES:
            overdue = [version for version, each in self._held.items() if each.is_overdue(now)]
            if not overdue:
                raise StateError("state", f"{MAX_COPIES} versions are being fetched: ask another replica")
            self._held.pop(min(overdue)).given_up = True
        taking = asyncio.create_task(self._take(engine, request.stage, request.version))
        copy = self._held[request.version] = _Copy(taking)
        return copy

    async def _take(self, engine: Engine, stage: int, version: int) -> Checkpoint:
        if (rest := self._next_at - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        began, held = time.monotonic(), engine.version
        if held != version:
            raise StateError("state", f"version {version} is over, this peer is at {held}")
        path = self._folder / f"whole-{version}-{time.monotonic_ns()}"
        try:
            draft = await asyncio.wrap_future(copy_to(path, engine, self._run_hash, stage, version, self._emit))
        finally:
            self.rest(began)
        hash_ = await asyncio.to_thread(draft.hash)
        return Checkpoint(stage, version, path, draft.meta.digest, hash_, draft.nbytes)


@dataclass(slots=True, eq=False)
class _Reading:
    """A peer that fetches a copy."""

    began: float
    nbytes: int = 0


@dataclass(slots=True, eq=False)
class _Copy:
    taking: asyncio.Task[Checkpoint]
    readings: list[_Reading] = field(default_factory=list)
    given_up: bool = False
    """Whether its readers are too slow while others wait."""

    def is_overdue(self, now: float) -> bool:
        return all(is_overdue(now - each.began, each.nbytes / max(now - each.began, 1e-9)) for each in self.readings)

    def remove(self) -> None:
        """Remove its file as soon as it is written."""

        def taken(task: asyncio.Task[Checkpoint]) -> None:
            if not task.cancelled() and task.exception() is None:
                path = task.result().path
                asyncio.get_running_loop().run_in_executor(None, lambda: path.unlink(missing_ok=True))

        self.taking.add_done_callback(taken)
