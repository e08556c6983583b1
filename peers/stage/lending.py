"""The copies of versions and the sums of steps that a peer keeps for listeners of its stage while it trains.

Both lie on disk and are served piece by piece. A copy is written before the step is applied, and kept while a listener
loads that version. Each bucket of the sums is stored as it was sent when the step was reduced, or would have been sent
to another replica. The sums of one step at most wait in memory for the disk: those of another are written before the
step is applied.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path

from peers.runtime.piece_request import NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from peers.stage.copying import Engine, copy_to
from swarm.buffer import Buffer
from swarm.events import CheckpointRefused, Event
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import Lend, StoreSum
from swarm.state.draft import Draft
from swarm.state.error import StateError
from swarm.state.packed import framed
from swarm.state.pieces import PIECE_BYTES, Index, SumsFile

MAX_COPIES = 2
"""Number of copies of the state on disk at once."""
MAX_SUMS_BYTES = 16 << 30
"""Bytes of sums on disk. The oldest go first: a listener that needs them must load a newer version."""


@dataclass(slots=True)
class _Lent:
    """The content of a file that is lent."""

    index: Index
    path: Path

    def answer(self, request: PieceRequest) -> bytes:
        pieces = self._read(request.first, request.count)
        if not request.packed:
            return pieces
        views = (memoryview(pieces)[at : at + PIECE_BYTES] for at in range(0, len(pieces), PIECE_BYTES))
        return b"".join(part for view in views for part in framed(view))

    def _read(self, first: int, count: int) -> bytes:
        start = first * PIECE_BYTES
        length = min(count * PIECE_BYTES, self.index.total - start)
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


_Making = asyncio.Future[_Lent]


class Lending:
    """Called from the event loop; copying, hashing and the disk are in threads. `folder` is emptied at the start."""

    def __init__(self, run_hash: str, folder: Path, emit: Callable[[Event], None]) -> None:
        self._run_hash = run_hash
        self._folder = folder
        self._emit = emit
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._stage = -1
        self._order: Lend | None = None
        self._copies: dict[int, _Making] = {}
        """By version."""
        self._sums: dict[int, _Making] = {}
        """By step."""
        self._taking: dict[int, asyncio.Future[Draft]] = {}
        self._stored: dict[Attempt, dict[int, bytes]] = {}
        """Reduced buckets of attempts that are not applied yet, if there are listeners."""
        self._in_memory: asyncio.Future[_Lent] | None = None
        """The last sums that were written from memory."""

    @property
    def copies(self) -> list[int]:
        """Versions that are lent."""
        return sorted(self._copies)

    def taken(self, version: int) -> asyncio.Future[Draft] | None:
        """The copy of a version, while it is taken."""
        return self._taking.get(version)

    def lend(self, order: Lend, stage: int, engine: Engine, may_copy: bool) -> None:
        """Carry out a Lend. `may_copy`: the last copy was long enough ago."""
        if stage != self._stage:
            self.clear()
        self._stage, self._order = stage, order
        for version in [v for v in self._copies if v not in order.versions]:
            self._forget(self._copies, version)
        for step in [step for step in self._sums if step < order.since]:
            self._forget(self._sums, step)
        version = order.pass_id.version
        if version in order.versions and version not in self._copies and may_copy and len(self._copies) < MAX_COPIES:
            path = self._folder / f"state-{version}-{time.monotonic_ns()}"
            copying = copy_to(path, engine, self._run_hash, stage, version, self._emit)
            taking = asyncio.wrap_future(copying)  # queued before the step is applied
            self._taking = {version: taking}
            self._copies[version] = self._keep(_lent(taking, path), self._copies, version)

    def lends(self, attempt: Attempt) -> bool:
        """Whether the pass of an attempt of this stage has listeners that need its sums."""
        return self._order is not None and self._order.sums and self._order.pass_id == attempt.pass_id

    def stored(self, action: StoreSum) -> None:
        """A reduced bucket of this stage, as received or as summed here. It may be empty."""
        busy = self._in_memory is not None and not self._in_memory.done()
        if self.lends(action.attempt) and len(action.payload) and not busy:  # type: ignore[arg-type]
            # a view may be of memory that changes with the next pass
            kept = bytes(action.payload) if isinstance(action.payload, memoryview) else action.payload
            self._stored.setdefault(action.attempt, {})[action.bucket] = kept  # type: ignore[assignment]

    def cancelled(self, attempt: Attempt) -> None:
        self._stored.pop(attempt, None)

    def decided(self, attempt: Attempt, engine: Engine, whole: bool) -> None:
        """The sums of `attempt` are applied now: keep them. `whole`: uncompressed, so they can be made anew."""
        found = self._stored.get(attempt, {})
        self._stored.clear()
        step = attempt.pass_id.step
        if step in self._sums:
            return
        path = self._folder / f"sums-{step}-{time.monotonic_ns()}"
        if len(found) == engine.buckets:
            buckets = [found[b] for b in range(engine.buckets)]
            writing = asyncio.to_thread(_write, path, engine.buckets, buckets)
            self._in_memory = self._sums[step] = self._keep(_lent(writing, path), self._sums, step)
        elif whole and self.lends(attempt):
            count = engine.whole_buckets
            queued = engine.written(attempt, lambda buckets: _write(path, count, buckets))  # before the step is applied
            written: asyncio.Future[None] = asyncio.wrap_future(queued)
            self._sums[step] = self._keep(_lent(written, path), self._sums, step)
        done = [(known, lent.result().index.total) for known, lent in self._sums.items() if _is_here(lent)]
        while sum(total for _, total in done) > MAX_SUMS_BYTES:
            self._forget(self._sums, min(done)[0])
            done.remove(min(done))

    def clear(self) -> None:
        """Another state is loaded, or none is held any more."""
        self._stored.clear()
        self._order = None
        for table in (self._copies, self._sums):
            for key in list(table):
                self._forget(table, key)

    async def answer(self, request: PieceRequest, stage: int | None, version: int | None) -> bytes:
        """Pieces or an index; NOT_YET, NOT_KEPT. Raises StateError for pieces that do not exist, and OSError.

        `stage`, `version`: those of this peer. The requester may have heard sooner of the pass that orders the copy.
        """
        held = self._copies if request.kind is PieceKind.STATE else self._sums
        lent = held.get(request.version) if request.stage == self._stage == stage else None
        if lent is None:
            coming = request.stage == stage and version is not None and request.version >= version
            return NOT_YET if coming else NOT_KEPT
        if not lent.done() and not request.count:
            return NOT_YET
        found = await asyncio.shield(lent)
        if not request.count:
            return found.index.encode()
        pieces = len(found.index.hashes)
        if request.first + request.count > pieces:
            raise StateError("lent", f"pieces {request.first} to {request.first + request.count} of {pieces}")
        return await asyncio.to_thread(found.answer, request)

    # ------------------------------------------------------------

    def _keep(self, making: Coroutine[None, None, _Lent], table: dict[int, _Making], key: int) -> _Making:
        """A future that removes itself from `table` if it fails."""
        task = asyncio.create_task(making)

        def ended(done: _Making) -> None:
            if done.cancelled() or (error := done.exception()) is None:
                return
            self._emit(CheckpointRefused(f"the copy or sums of version {key} for others", str(error)))
            if table.get(key) is done:
                del table[key]

        task.add_done_callback(ended)
        return task

    def _forget(self, table: dict[int, _Making], key: int) -> None:
        """Remove its file as soon as it is written. In a thread: a busy disk takes seconds to remove a large file."""

        def remove(lent: _Making) -> None:
            if _is_here(lent):
                path = lent.result().path
                asyncio.get_running_loop().run_in_executor(None, lambda: path.unlink(missing_ok=True))

        table.pop(key).add_done_callback(remove)


async def _lent(writing: Awaitable[object], path: Path) -> _Lent:
    """What lies at `path` once it is written."""
    await writing
    return _Lent(await asyncio.to_thread(Index.of_file, path), path)


def _write(path: Path, count: int, buckets: Iterable[Buffer]) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            SumsFile.write(file, count, buckets)
    except BaseException:
        path.unlink(missing_ok=True)  # left by a full disk
        raise


def _is_here(lent: _Making) -> bool:
    return lent.done() and not lent.cancelled() and lent.exception() is None
