"""Keeps a peer's stage: loads state (initial, own checkpoint, another replica, the archive), saves it, serves it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Protocol

from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.runtime.state_request import StateRequest
from peers.runtime.thread_work import to_its_end
from peers.stage.copies import Copies
from peers.stage.copying import copy_state
from peers.stage.gathering import Fetch as FetchPieces
from peers.stage.gathering import Gathering
from peers.stage.lending import Lending
from swarm.compute.averaging import largest_bucket
from swarm.compute.digest import first_chain
from swarm.compute.engine import StageEngine
from swarm.compute.optimizer import StageState
from swarm.compute.reduction import largest_exact
from swarm.events import CheckpointRefused, CheckpointWritten, Event, StateFetched
from swarm.manifest import RunManifest
from swarm.models.kinds import parameter_shapes
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.peer.catch_up import is_whole
from swarm.protocol.peer.io import (
    Apply,
    CancelReduce,
    Fetched,
    FetchSums,
    Lend,
    LoadState,
    PeerInput,
    RestoreSums,
    StoreSum,
)
from swarm.protocol.peer.status_reports import Saved
from swarm.state.checkpoints import CheckpointStore
from swarm.state.error import StateError
from swarm.state.folder import Checkpoint
from swarm.state.layout import ShardMeta, check_meta, shard_limit, state_shapes
from swarm.state.pieces import SumsFile
from swarm.state.shard import Shard, open_shard
from swarm.state.transfer import ShardReceiver, iter_file_chunks

_NAME_LENGTH = 16
"""Number of digits of the run hash that name a run's folder."""

Fetch = Callable[[Actor, bytes], AsyncGenerator[bytes, None]]


class NotFinite(Exception):
    """The state holds NaN or infinity, so it is useless for training, and no checkpoint is made of it."""


class NewEngine(Protocol):
    def __call__(self, stage: int, post: Callable[[PeerInput], None]) -> StageEngine: ...


class Keeper:
    """One engine at a time. All methods are called from the event loop; disk work happens in threads.

    Checkpoints lie in a folder of the run's own in `folder`: a run never prunes the checkpoints of another run.
    """

    def __init__(
        self,
        manifest: RunManifest,
        folder: Path,
        new_engine: NewEngine,
        post: Callable[[PeerInput], None],
        fetch: Fetch,
        emit: Callable[[Event], None],
        fetch_pieces: FetchPieces,
    ) -> None:
        self._manifest = manifest
        self._run_hash = manifest.hash
        self._new_engine = new_engine
        self._post = post
        self._fetch = fetch
        self._emit = emit
        self._store = CheckpointStore(
            folder / self._run_hash[:_NAME_LENGTH],
            self._run_hash,
            manifest.checkpoint.keep,
            lambda path, reason: emit(CheckpointRefused(str(path), reason)),
        )
        lent = folder.with_name("lent")
        self.lending = Lending(self._run_hash, lent, emit)
        self._fetch_pieces = fetch_pieces
        self._torn: set[tuple[int, int]] = set()
        """Stage and version of checkpoints on this disk that turned out to be unusable."""
        self._incoming = folder.with_name("incoming")
        self._incoming.mkdir(parents=True, exist_ok=True)
        _remove(self._incoming.glob("sums-*"))  # left by another process
        _remove(self._incoming.glob("whole-*"))
        self._downloads = count()
        self._removing: asyncio.Future[None] | None = None
        """A thread that removes old sums."""
        self._sums: Gathering | None = None
        """The fetch of the current step's sums."""
        self._indices: dict[int, set[bytes]] = {}
        """{step: the indices of its fetched sums}: if the sums are wanted again, they were not the decided ones."""
        self._fetched = 0
        self._told_at = 0.0
        self._copies = Copies(self._run_hash, lent, emit)
        self.engine: StageEngine | None = None
        self.stage: int | None = None
        self._making = asyncio.Lock()
        self._saving = asyncio.Lock()

    def preferred(self) -> Saved | None:
        """The stage of the newest checkpoint on this disk.

        The history of that checkpoint is unknown: a repeated step may have another result on other machines. The
        checkpoint is still useful if the source of that version has the same one (`_own`).
        """
        stages = range(self._manifest.model.stages)
        saved = [(version, stage) for stage in stages for version in self._store.versions(stage)]
        return Saved(StageIndex(max(saved)[1])) if saved else None

    def flip_bit(self) -> None:
        """Flip one bit of the parameters in memory: for rehearsals (peers/runtime/fault.py)."""
        if self.engine is not None:
            self.engine.flip_bit()

    def starve(self) -> None:
        """Leave no memory for the next microbatch: for rehearsals too."""
        if self.engine is not None:
            self.engine.starve()

    def overflow(self) -> None:
        """From now on make gradients for the stage before that are finite and far too large: for rehearsals too."""
        if self.engine is not None:
            self.engine.overflow()

    async def load(self, action: LoadState) -> StageEngine:
        """Carry out a LoadState. Raises StateError or a network error, and then leaves no half-loaded state."""
        self._indices.clear()  # after a rollback the same steps may be decided again, and their sums be right
        async with self._making:  # an order that replaces this one waits for the engine that a thread is making
            engine = await to_its_end(self._engine_of, action.stage)
        started = time.monotonic()
        if action.version == 0 and action.source is None and not action.donors:
            if self._manifest.initial.sha256:
                raise StateError(
                    "the coordinator", f"orders new parameters for stage {action.stage}; they are imported"
                )
            await asyncio.wrap_future(engine.initialise())
            self._forget()
            return engine
        engine.prepare()
        own = await asyncio.to_thread(self._own, action.stage, action.version)
        if action.donors:
            source = f"{len(action.donors)} replica" + "s" * (len(action.donors) != 1)
            shard = await self._gather(action, own)
        else:
            shard, source = await self._download(action, own)
        state = _state(shard)
        if await asyncio.to_thread(state.digest) != shard.meta.digest:
            raise StateError(source, f"the state of stage {action.stage} does not have the digest it names")
        if state.version == 0 and self._manifest.initial.sha256:
            self._check_first(state, shard.meta, source)
        await asyncio.wrap_future(engine.load_state(state))
        self._forget()
        nbytes = sum(tensor.nbytes for tensor in shard.tensors.values())
        seconds = time.monotonic() - started
        self._emit(StateFetched(action.stage, shard.meta.version, source, nbytes, seconds))
        return engine

    def _check_first(self, state: StageState, meta: ShardMeta, source: str) -> None:
        """Check, whatever the source, that version 0 is exactly the imported parameters of the manifest."""
        chain = first_chain(self._manifest, meta.stage)
        if (meta.digest, state.chain) != (self._manifest.initial.digests[meta.stage], chain):
            raise StateError(source, f"version 0 of stage {meta.stage} differs from the run's imported parameters")

    def _engine_of(self, stage: int) -> StageEngine:
        if self.engine is None or self.stage != stage:
            if self.engine is not None:
                self.engine.close()
            self.engine = self._new_engine(stage, self._post)
            self.stage = stage
        return self.engine

    def _own(self, stage: int, version: int) -> Checkpoint | None:
        """The checkpoint on this disk under that name. It is useful if the source of the state has the same one.

        After a rollback a step may have another result, for example if a gradient was not finite in only one of its
        attempts. With codecs that build on earlier visits it usually has.
        """
        if (stage, version) in self._torn:
            return None
        try:
            return self._store.checkpoint(stage, version)
        except StateError:  # there is none (any more)
            return None

    def _load_own(self, stage: int, version: int) -> Shard | None:
        try:
            return self._store.load(stage, version, self._shapes(stage))
        except StateError as error:
            self._emit(CheckpointRefused(str(error.where), error.reason))
            self._torn.add((stage, version))
            return None

    def _shapes(self, stage: int) -> dict[str, tuple[int, ...]]:
        return state_shapes(parameter_shapes(self._manifest.model, stage))

    async def _download(self, action: LoadState, own: Checkpoint | None) -> tuple[Shard, str]:
        """The state and its source. If this disk has the same state, only the header is fetched."""
        assert action.source is not None
        request = StateRequest(action.stage, action.version, from_archive=action.from_archive)
        parameters = parameter_shapes(self._manifest.model, action.stage)
        path = self._incoming / f"whole-{action.stage}-{action.version}-{next(self._downloads)}"
        receiver = ShardReceiver(self._run_hash, action.stage, action.version, parameters, path, str(action.source))
        try:
            async with aclosing(self._fetch(action.source, request.encode())) as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(receiver.feed, chunk)
                    if own is not None and own.hash == receiver.hash:
                        break
                else:
                    source = "archive" if action.from_archive else str(action.source)
                    return await asyncio.to_thread(receiver.finish), source
        finally:
            await asyncio.to_thread(receiver.close)
        shard = await asyncio.to_thread(self._load_own, action.stage, action.version)
        return (shard, "own checkpoint") if shard is not None else await self._download(action, None)

    def _forget(self) -> None:
        """Another state is loaded. Copies may belong to a rolled-back history: versions count anew."""
        self._copies.forget()
        self.lending.clear()

    # ------------------------------------------------------------ while others train

    async def _gather(self, action: LoadState, own: Checkpoint | None) -> Shard:
        parameters = parameter_shapes(self._manifest.model, action.stage)
        limit = shard_limit(parameters)
        gathering = self._gathering(PieceKind.STATE, action.stage, action.version, limit, action.donors)
        others = [other for other in self._incoming.glob("state-*") if other != gathering.path]
        await asyncio.to_thread(_remove, others)
        if own is not None and not gathering.path.exists():  # its pieces that equal the donors' need not be fetched
            await asyncio.to_thread(_seed, gathering.path, own.path)
        shard = await asyncio.to_thread(self._parse, await gathering.run(), action.stage)
        check_meta(shard.meta, "the donors", run_hash=self._run_hash, stage=action.stage, version=action.version)
        return shard

    def _parse(self, path: Path, stage: int) -> Shard:
        """The state in a file, whose name is removed. Raises StateError, OSError."""
        try:
            return open_shard(path, "the donors", shapes=self._shapes(stage))
        finally:
            path.unlink()

    async def fetch_sums(self, action: FetchSums) -> bool:
        """Carry out a FetchSums. False: the fetch runs already, now with these donors. Raises StateError, OSError."""
        if self._removing is not None:  # the same step may have been here before a rollback
            await asyncio.shield(self._removing)
        async with self._making:  # a LoadState that was ordered before
            engine = self.engine
        if engine is None or self.stage != action.stage:
            raise StateError("sums", f"this peer does not hold stage {action.stage} any more")
        running = self._sums
        if running is not None and (running.stage, running.version) == (action.stage, action.step):
            running.donors = action.donors
            return False
        largest = max(largest_bucket(self._manifest.sums), largest_exact(self._manifest.sums))
        limit = SumsFile.limit(max(engine.buckets, engine.whole_buckets), largest)
        gathering = self._gathering(PieceKind.SUMS, action.stage, action.step, limit, action.donors)
        if gathering.path.exists():  # it was here before, and was wrong
            gathering.path.unlink()
            gathering.wrong = frozenset(self._indices.get(action.step, ()))
        self._sums = gathering
        try:
            await gathering.run()
            if gathering.index is not None:
                self._indices.setdefault(action.step, set()).add(gathering.index.encode())
        finally:
            if self._sums is gathering:
                self._sums = None
        return True

    async def restore(self, action: RestoreSums) -> None:
        """Carry out a RestoreSums. Raises StateError, FrameError or OSError if the sums cannot be used."""
        engine, attempt = self.engine, action.attempt
        assert engine is not None
        path = self._incoming / f"sums-{attempt.stage}-{attempt.pass_id.step}"
        raw = await asyncio.to_thread(path.read_bytes)
        buckets = engine.whole_buckets if action.whole else engine.buckets
        engine.restore(attempt, SumsFile.read(raw, buckets, "the donors"), action.whole)

    def applied(self, step: int) -> None:
        """Remove the sums of steps up to this one."""
        old = [path for path in self._incoming.glob("sums-*") if int(path.name.rsplit("-", 1)[1]) <= step]
        if old:
            self._removing = asyncio.get_running_loop().run_in_executor(None, _remove, old)
        self._indices = {other: indices for other, indices in self._indices.items() if other > step}

    def note_sums(self, action: StoreSum | CancelReduce | Apply) -> None:
        """Pass on what happens to the sums of this stage, which may be lent."""
        match action:
            case StoreSum():
                self.lending.stored(action)
            case CancelReduce():
                self.lending.cancelled(action.attempt)
            case Apply(decision, attempt) if self.engine is not None:
                whole = not self._manifest.sums.compresses or is_whole(decision, attempt.stage)
                self.lending.decided(attempt, self.engine, whole)

    def lend(self, order: Lend) -> None:
        """Carry out a Lend."""
        assert self.engine is not None and self.stage is not None
        now = time.monotonic()
        copying = order.pass_id.version in order.versions and order.pass_id.version not in self.lending.copies
        self.lending.lend(order, self.stage, self.engine, self._copies.may_be_taken(now))
        if copying and (taken := self.lending.taken(order.pass_id.version)) is not None:
            taken.add_done_callback(lambda _: self._copies.rest(now))

    async def answer(self, request: PieceRequest) -> bytes:
        """The answer to a request for pieces, as Lending.answer."""
        version = None if self.engine is None else self.engine.version
        return await self.lending.answer(request, self.stage, version)

    def _gathering(self, kind: PieceKind, stage: int, version: int, limit: int, donors: tuple[Actor, ...]) -> Gathering:
        path = self._incoming / f"{kind.value}-{stage}-{version}"
        return Gathering(kind, stage, version, limit, path, self._fetch_pieces, self._emit, self._come, donors)

    def _come(self, nbytes: int) -> None:
        """More bytes have come: report the total once a second."""
        self._fetched += nbytes
        if (now := time.monotonic()) - self._told_at >= 1.0:
            self._told_at = now
            self._post(Fetched(self._fetched))

    # ------------------------------------------------------------ saving and serving

    async def save(self, version: int, proven: int | None = None) -> str:
        """Copy now, and commit after earlier saves; returns the hash of the shard's file, equal on every replica.

        Saves run one after the other. A save prunes older and newer checkpoints on the disk, but for the newest one up
        to version `proven`. Raises NotFinite, and StateError when the disk is full.
        """
        engine, stage = self.engine, self.stage
        assert engine is not None and stage is not None
        copying = copy_state(engine, stage, version, lambda held: self._store.draft(stage, held), self._emit)
        draft = await asyncio.wrap_future(copying)
        async with self._saving:
            if draft.spoilt:
                await asyncio.to_thread(draft.remove)
                raise NotFinite(f"version {version} of stage {stage} holds NaN or infinity")
            checkpoint = await to_its_end(self._store.save, draft, proven)
        self._emit(CheckpointWritten(stage, version, checkpoint.digest, checkpoint.nbytes))
        return checkpoint.hash

    async def serve(self, request: StateRequest, requester: Actor) -> AsyncGenerator[bytes, None]:
        """The chunks of a live state or of a saved checkpoint. Raises StateError when this peer does not have it."""
        if request.checkpoint:
            for chunk in iter_file_chunks(self._store.checkpoint(request.stage, request.version), self._run_hash):
                yield chunk
            return
        engine = self.engine
        if engine is None or self.stage != request.stage or engine.version != request.version:
            held = None if engine is None else engine.version
            raise StateError("state", f"asked for stage {request.stage} version {request.version}, holds {held}")
        async with aclosing(self._copies.serve(engine, request, requester)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        engine, self.engine = self.engine, None  # other peers of the process may continue, and need its memory
        if engine is not None:
            await asyncio.to_thread(engine.close)
        self.lending.clear()
        await asyncio.to_thread(_remove, self._incoming.glob("sums-*"))


def _seed(path: Path, own: Path) -> None:
    """Begin with a file of this disk. Best effort: missing pieces come from the donors."""
    made = path.with_name(f"{path.name}.own")
    try:
        shutil.copyfile(own, made)
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)


def _remove(paths: Iterable[Path]) -> None:
    """Run it in a thread: a busy disk takes seconds to remove a large file."""
    for path in paths:
        path.unlink(missing_ok=True)


def _state(shard: Shard) -> StageState:
    meta = shard.meta
    return StageState(meta.version, meta.updates, meta.chain, shard.tensors, meta.subspace_id)
