"""Data that a peer keeps for other peers of its stage during training: copies of its state, and the sums of steps.

Both are on disk and are served piece by piece. A copy is written before the next step is applied, and kept while a
listener loads that version. Each bucket of the sums is stored in the form in which it was sent, or would have been
sent, to another replica. The sums of at most one step wait in memory for the disk; if others are waiting, the sums are
written before the step is applied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar

from peers.runtime.piece_request import NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from peers.runtime.thread_work import in_thread
from peers.runtime.transfer_allowance import TransferAllowance
from peers.stage.copying import State
from peers.stage.lent_files import LentFile, LentFiles
from peers.stage.state_copies import StateCopies
from swarm.buffer import Buffer
from swarm.events import Event
from swarm.protocol.ids import Attempt
from swarm.protocol.peer.io import Lend, StoreSum
from swarm.state.error import StateError
from swarm.state.pieces import SumsFile

MAX_SUMS_BYTES = 16 << 30
"""Bytes of sums on disk. The oldest are removed first: a listener that still needs them must load a newer version."""

_MOST_TOLD = 1024
_TOLD_TIMES = 3
"""How many times a requester is told why its content cannot be had. One answer may be lost: a requester that has waited
for too long cancels the request, and asks again.
"""
_Value = TypeVar("_Value")


class Engine(Protocol):
    @property
    def buckets(self) -> int: ...
    @property
    def whole_buckets(self) -> int: ...
    @property
    def state(self) -> State: ...
    def written(self, attempt: Attempt, take: Callable[[Iterable[Buffer]], _Value]) -> Future[_Value]: ...


class Lending:
    """What one peer lends. Called from the event loop; copies, hashes and disk access are in threads. Copies and sums
    that an earlier process left in `folder` are removed. `folder` may be a link to another disk, which has other files.
    """

    def __init__(self, run_hash: str, folder: Path, emit: Callable[[Event], None]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in (*folder.glob("state-*"), *folder.glob("sums-*")):
            left.unlink(missing_ok=True)
        self._stage = -1
        self._order: Lend | None = None
        self._copies = StateCopies(run_hash, folder, emit)
        self._allowance = TransferAllowance(emit)
        self._history = 0
        """Number of times that everything was forgotten. The states since then count as one content, whatever version
        a requester loads.
        """
        self._sums = LentFiles(emit)
        """The files of sums, by step."""
        self._stored: dict[Attempt, dict[int, bytes]] = {}
        """Reduced buckets of attempts that are not yet applied, if there are listeners."""
        self._in_memory: asyncio.Future[LentFile] | None = None
        """The latest sums that were written from memory."""
        self._told: dict[tuple[str, PieceKind, int], int] = {}
        """How many times a peer was told of a full disk, and for which request."""

    @property
    def copies(self) -> list[int]:
        """Versions of which copies are lent."""
        return self._copies.versions

    def lend(self, order: Lend, stage: int, engine: Engine) -> None:
        """Execute a Lend."""
        self._holds(stage)
        self._order = order
        self._copies.order(order.versions, order.pass_id.version, stage, engine.state)
        for step in [step for step in self._sums.numbers if step < order.since]:
            self._sums.forget(step)

    def lends(self, attempt: Attempt) -> bool:
        """True if the pass of an attempt of this stage has listeners that need its sums."""
        return self._order is not None and self._order.sums and self._order.pass_id == attempt.pass_id

    def stored(self, action: StoreSum) -> None:
        """Keep a reduced bucket of this stage, received or summed here. It may be empty."""
        busy = self._in_memory is not None and not self._in_memory.done()
        if self.lends(action.attempt) and len(action.payload) and not busy:  # type: ignore[arg-type]
            # the view may refer to memory that changes in the next pass
            kept = bytes(action.payload) if isinstance(action.payload, memoryview) else action.payload
            self._stored.setdefault(action.attempt, {})[action.bucket] = kept  # type: ignore[assignment]

    def cancelled(self, attempt: Attempt) -> None:
        self._stored.pop(attempt, None)

    def decided(self, attempt: Attempt, engine: Engine, whole: bool) -> None:
        """The sums of `attempt` are being applied: keep them. `whole`: uncompressed, so that they can be computed
        again.
        """
        found = self._stored.get(attempt, {})
        self._stored.clear()
        step = attempt.pass_id.step
        if step in self._sums:
            return
        path = self._folder / f"sums-{step}-{time.monotonic_ns()}"
        if len(found) == engine.buckets:
            buckets = [found[b] for b in range(engine.buckets)]
            writing = in_thread(_write, path, engine.buckets, buckets)
            self._in_memory = self._sums.keep(step, path, writing)
        elif whole and self.lends(attempt):
            count = engine.whole_buckets
            queued = engine.written(attempt, lambda buckets: _write(path, count, buckets))  # before the step is applied
            written: asyncio.Future[None] = asyncio.wrap_future(queued)
            self._sums.keep(step, path, written)
        self._sums.keep_within(MAX_SUMS_BYTES)

    def clear(self) -> None:
        """Forget everything: another state is loaded, or none is held, so the same version numbers may get other
        contents.
        """
        self._history += 1
        self._stored.clear()
        self._order = None
        self._copies.clear()
        self._sums.clear()

    async def answer(self, request: PieceRequest, peer: str, stage: int | None, engine: Engine | None) -> bytes:
        """Return the answer: pieces, an index, NOT_YET or NOT_KEPT. Raises StateError for pieces that do not exist,
        Busy if the requester has fetched the same content too often, StateFreed if this peer gives up the stage while
        the copy is written, and OSError.

        `peer`: the requester's peer id. `stage`, `engine`: those of this peer. The requester may have learned earlier
        than this peer of the pass that orders the copy.
        """
        if engine is None or request.stage != stage:
            return NOT_KEPT
        self._holds(stage)
        if request.kind is PieceKind.STATE:
            lent = self._copies.get(request.version, stage, engine.state)
        else:
            lent = self._sums.get(request.version)
        if lent is None:
            self._tell_trouble(request, peer)
            held = engine.state.version
            return NOT_YET if held is not None and request.version >= held else NOT_KEPT
        if not lent.done() and not request.count:
            return NOT_YET
        found = await asyncio.shield(lent)
        if not request.count:
            return found.index.encode()
        pieces = len(found.index.hashes)
        if request.first + request.count > pieces:
            raise StateError(
                "lent", f"pieces up to {request.first + request.count} are requested, but there are {pieces}"
            )
        # the sums of each step are needed once; a step that is repeated after a rollback has another file
        content = found.path if request.kind is PieceKind.SUMS else self._history
        self._allowance.check(peer, content, found.index.total)
        self._allowance.charge(peer, content, found.nbytes(request), found.index.total)
        return await in_thread(found.read, request)

    def _tell_trouble(self, request: PieceRequest, peer: str) -> None:
        """Raise StateError if the disk did not take the newest file, a few times to each peer.

        Afterwards, the answer says whether the peer should ask again. After a failed copy, the next one is not tried at
        once. So the disk may have refused an earlier version than the requested one.
        """
        files: StateCopies | LentFiles = self._copies if request.kind is PieceKind.STATE else self._sums
        asked = (peer, request.kind, request.version)
        times = self._told.get(asked, 0)
        if (trouble := files.trouble) and times < _TOLD_TIMES:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told[asked] = times + 1
            raise StateError("the donor's disk", trouble)

    def _holds(self, stage: int) -> None:
        """Record which stage this peer holds. It may be another stage than before."""
        if stage != self._stage:
            self.clear()
            self._stage = stage


def _write(path: Path, count: int, buckets: Iterable[Buffer]) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            SumsFile.write(file, count, buckets)
    except BaseException:
        path.unlink(missing_ok=True)  # left over when the disk was full
        raise
