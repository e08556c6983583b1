"""Keeps a peer's stage: loads its state (initial state, own checkpoint, other replicas, the archive), saves it, and
lends it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from peers.runtime.checkpoint_request import CheckpointRequest, checkpoint_transfer
from peers.runtime.piece_request import PieceRequest
from peers.runtime.thread_work import NoThread, in_thread, to_its_end
from peers.stage.copying import copy_state
from peers.stage.incoming import Incoming
from peers.stage.index_inquiry import Fetch
from peers.stage.lending import Lending
from swarm.compute.digest import first_chain
from swarm.compute.engine import StageEngine
from swarm.compute.optimizer import StageState
from swarm.events import CheckpointRefused, CheckpointWritten, Event, StateFetched
from swarm.manifest import RunManifest
from swarm.models.kinds import parameter_shapes
from swarm.net.bulk import Transfer
from swarm.protocol.ids import StageIndex
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
from swarm.state.layout import ShardMeta, state_shapes
from swarm.state.pieces import SumsFile
from swarm.state.shard import Shard

_NAME_LENGTH = 16
"""Number of digits of the run hash that name a run's folder."""


class NotFinite(Exception):
    """The state contains NaN or infinity. It is useless for training, so it is not saved as a checkpoint."""


class NewEngine(Protocol):
    def __call__(self, stage: int, post: Callable[[PeerInput], None]) -> StageEngine: ...


class Keeper:
    """Keeps the stage of one peer, in one engine at a time. All methods are called from the event loop; disk work is
    done in threads.

    Each run has its own folder of checkpoints in `folder`, so a run never prunes the checkpoints of another run.
    """

    def __init__(
        self,
        manifest: RunManifest,
        folder: Path,
        new_engine: NewEngine,
        post: Callable[[PeerInput], None],
        fetch: Fetch,
        emit: Callable[[Event], None],
        graphs: Callable[[], int],
    ) -> None:
        """`graphs`: bytes of autograd graphs that this peer may keep now."""
        self._manifest = manifest
        self._run_hash = manifest.hash
        self._new_engine = new_engine
        self._post = post
        self._emit = emit
        self._graphs = graphs
        self._store = CheckpointStore(
            folder / self._run_hash[:_NAME_LENGTH],
            self._run_hash,
            manifest.checkpoint.keep,
            lambda path, reason: emit(CheckpointRefused(str(path), reason)),
        )
        self._torn: set[tuple[int, int]] = set()
        """Stage and version of checkpoints on this disk that are unusable."""
        self._incoming = Incoming(
            manifest, folder.with_name("incoming"), fetch, emit, lambda nbytes: post(Fetched(nbytes))
        )
        self._lending = Lending(self._run_hash, folder.with_name("lent"), emit)
        self.engine: StageEngine | None = None
        self.stage: int | None = None
        self._making = asyncio.Lock()
        self._saving = asyncio.Lock()

    def preferred(self) -> Saved | None:
        """The stage and version of the newest checkpoint on this disk.

        The history of that checkpoint is unknown: a repeated step may have had another result on other machines. The
        checkpoint is still useful if the source of that version holds the same state (`_own`).
        """
        stages = range(self._manifest.model.stages)
        saved = [(version, stage) for stage in stages for version in self._store.versions(stage)]
        return Saved(StageIndex(max(saved)[1])) if saved else None

    def flip_bit(self) -> None:
        """Flip one bit of the parameters in memory. This is a deliberate fault, for rehearsals
        (peers/runtime/fault.py).
        """
        if self.engine is not None:
            self.engine.flip_bit()

    def starve(self) -> None:
        """Make the next microbatch run out of memory. This is a deliberate fault, for rehearsals."""
        if self.engine is not None:
            self.engine.starve()

    def overflow(self) -> None:
        """Make all further gradients for the previous stage finite but far too large. This is a deliberate fault, for
        rehearsals.
        """
        if self.engine is not None:
            self.engine.overflow()

    async def load(self, order: LoadState) -> StageEngine:
        """Execute a LoadState. Raises StateError or a network error; no half-loaded state remains.

        Cancel all `fetch_sums` first.
        """
        self._incoming.drop_sums()
        async with self._making:  # a newer order waits for the engine that a thread is still making
            engine = await to_its_end(self._engine_of, order.stage)
        engine.limit_graphs(self._graphs())  # while the engine was made, another peer may have taken its part
        started = time.monotonic()
        if not order.donors and order.archive is None:
            self._check_initial(order)
            await asyncio.wrap_future(engine.state.initialise())
            self._lending.clear()
            return engine
        engine.state.prepare()
        shard, source = await self._fetched(order)
        state = _state(shard)
        if await in_thread(state.digest) != shard.meta.digest:
            raise StateError(source, f"the state of stage {order.stage} does not have the digest it names")
        if state.version == 0 and self._manifest.initial.sha256:
            self._check_first(state, shard.meta, source)
        await asyncio.wrap_future(engine.state.load(state))
        self._lending.clear()  # the copies may belong to a history that was rolled back
        nbytes = sum(tensor.nbytes for tensor in shard.tensors.values())
        seconds = time.monotonic() - started
        self._emit(StateFetched(order.stage, shard.meta.version, source, nbytes, seconds))
        return engine

    def _check_initial(self, order: LoadState) -> None:
        if order.version:
            raise StateError("the coordinator", f"names no source of version {order.version} of stage {order.stage}")
        if self._manifest.initial.sha256:
            raise StateError(
                "the coordinator",
                f"orders new initial parameters for stage {order.stage}, but those of this run are imported",
            )

    async def _fetched(self, order: LoadState) -> tuple[Shard, str]:
        """Fetch the state of an order. Return it, and its source in words."""
        own = await in_thread(self._own, order.stage, order.version)
        if order.archive is None:
            replicas = f"{len(order.donors)} replica" + "s" * (len(order.donors) != 1)
            return await self._incoming.state(order, own), replicas
        if (shard := await self._incoming.archived(order, order.archive, own)) is not None:
            return shard, "archive"
        if (shard := await in_thread(self._load_own, order.stage, order.version)) is not None:
            return shard, "own checkpoint"
        return await self._fetched(order)

    def _check_first(self, state: StageState, meta: ShardMeta, source: str) -> None:
        """Check, for every source, that version 0 is exactly the imported parameters of the manifest."""
        chain = first_chain(self._manifest, meta.stage)
        if (meta.digest, state.chain) != (self._manifest.initial.digests[meta.stage], chain):
            raise StateError(source, f"version 0 of stage {meta.stage} differs from the run's imported parameters")

    def _engine_of(self, stage: int) -> StageEngine:
        if self.engine is None or self.stage != stage:
            self.stage = None
            if self.engine is not None:
                _free(self.engine)  # there may be no room for the old and the new state at once
            self.engine = self._new_engine(stage, self._post)
            self.stage = stage
        return self.engine

    def _own(self, stage: int, version: int) -> Checkpoint | None:
        """The checkpoint of that stage and version on this disk. It is useful if the source of the state holds the same
        state.

        After a rollback, a repeated step may have another result, for example if a gradient was not finite in only one
        of its attempts. With codecs that use activations of earlier steps, the result usually differs.
        """
        if (stage, version) in self._torn:
            return None
        try:
            return self._store.checkpoint(stage, version)
        except StateError:  # there is none (any more)
            return None

    def _load_own(self, stage: int, version: int) -> Shard | None:
        try:
            return self._store.load(stage, version, state_shapes(parameter_shapes(self._manifest.model, stage)))
        except StateError as error:
            self._emit(CheckpointRefused(str(error.where), error.reason))
            self._torn.add((stage, version))
            return None

    # ------------------------------------------------------------ while others train

    async def fetch_sums(self, order: FetchSums) -> bool:
        """Execute a FetchSums. Return False if the fetch is already running; it continues with these donors. Raises
        StateError, OSError.
        """
        async with self._making:  # wait for a LoadState that was ordered before
            engine = self.engine
        if engine is None or self.stage != order.stage:
            raise StateError("sums", f"this peer does not hold stage {order.stage} any more")
        return await self._incoming.sums(order, max(engine.buckets, engine.whole_buckets))

    async def restore(self, action: RestoreSums) -> None:
        """Execute a RestoreSums. Raises StateError, FrameError or OSError if the sums cannot be used."""
        engine, attempt = self.engine, action.attempt
        assert engine is not None
        raw = await self._incoming.fetched_sums(attempt.stage, attempt.pass_id.step)
        buckets = engine.whole_buckets if action.whole else engine.buckets
        engine.restore(attempt, SumsFile.read(raw, buckets, "the donors"), action.whole)

    def applied(self, step: int) -> None:
        """Remove the sums of steps up to this one."""
        self._incoming.forget_sums(step)

    def note_sums(self, action: StoreSum | CancelReduce | Apply) -> None:
        """Record how many buckets of this stage's sums are complete, because other peers may need them."""
        match action:
            case StoreSum():
                self._lending.stored(action)
            case CancelReduce():
                self._lending.cancelled(action.attempt)
            case Apply(decision, attempt) if self.engine is not None:
                whole = not self._manifest.sums.compresses or is_whole(decision, attempt.stage)
                self._lending.decided(attempt, self.engine, whole)

    def lend(self, order: Lend) -> None:
        """Execute a Lend."""
        assert self.engine is not None and self.stage is not None
        self._lending.lend(order, self.stage, self.engine)

    async def answer(self, request: PieceRequest, peer: str) -> bytes:
        """The answer to a request for pieces from this peer id, as `Lending.answer` gives it."""
        return await self._lending.answer(request, peer, self.stage, self.engine)

    # ------------------------------------------------------------ saving

    async def save(self, version: int, proven: int | None = None) -> str:
        """Copy the state now, and commit it after earlier saves. Return the hash of the shard's file, which is equal
        on every replica.

        Saves run one after another. A save prunes older and newer checkpoints on the disk, except the newest one up to
        version `proven`. Raises NotFinite, StateFreed if this peer gives up the stage meanwhile, and StateError if the
        disk is full or no thread can be started.
        """
        engine, stage = self.engine, self.stage
        assert engine is not None and stage is not None
        copying = copy_state(engine.state, stage, version, lambda held: self._store.draft(stage, held), self._emit)
        try:
            draft = await asyncio.wrap_future(copying)
        except OSError as error:
            raise StateError("this stage's state", str(error)) from error
        async with self._saving:
            try:
                if draft.spoilt:
                    await in_thread(draft.remove)
                    raise NotFinite(f"version {version} of stage {stage} holds NaN or infinity")
                checkpoint = await to_its_end(self._store.save, draft, proven)
            except NoThread as error:
                draft.remove()
                raise StateError("this stage's state", str(error)) from error
        self._emit(CheckpointWritten(stage, version, checkpoint.digest, checkpoint.nbytes))
        return checkpoint.hash

    def saved(self, request: CheckpointRequest) -> Transfer:
        """A saved checkpoint. Raises StateError if this peer does not have it."""
        return checkpoint_transfer(self._store.checkpoint(request.stage, request.version), self._run_hash)

    async def close(self) -> None:
        engine, self.engine = self.engine, None  # other peers of the process may go on, and need its memory
        if engine is not None:
            await in_thread(_free, engine)
        self._lending.clear()
        await self._incoming.close()


def _free(engine: StageEngine) -> None:
    engine.close()
    gc.collect()  # its tensors are in cycles


def _state(shard: Shard) -> StageState:
    meta = shard.meta
    return StageState(meta.version, meta.updates, meta.chain, shard.tensors, meta.subspace_id)
