"""The states and sums that a peer fetches from others, in a folder of its home."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path

from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.piece_request import PieceKind
from peers.runtime.thread_work import in_thread
from peers.stage.donor_list import DonorList
from peers.stage.gathering import Gathering
from peers.stage.index_inquiry import Fetch
from swarm.compute.averaging import largest_bucket
from swarm.compute.reduction import largest_exact
from swarm.events import Event
from swarm.manifest import RunManifest
from swarm.models.kinds import parameter_shapes
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Donor
from swarm.protocol.peer.io import FetchSums, LoadState
from swarm.state.folder import Checkpoint
from swarm.state.layout import check_meta, shard_limit, state_shapes
from swarm.state.pieces import SumsFile
from swarm.state.shard import Shard, open_shard
from swarm.state.transfer import HEADER_BYTES, ShardReceiver


class Incoming:
    """The states and sums that this peer fetches. Used in one event loop. `folder` is created. `come(total)`: called at
    most once a second while bytes arrive.
    """

    def __init__(
        self,
        manifest: RunManifest,
        folder: Path,
        fetch: Fetch,
        emit: Callable[[Event], None],
        come: Callable[[int], None],
    ) -> None:
        self._manifest = manifest
        self._folder = folder
        self._fetch = fetch
        self._emit = emit
        self._come = come
        folder.mkdir(parents=True, exist_ok=True)
        _remove(folder.glob("sums-*"))  # left by an earlier process
        _remove(folder.glob("archived-*"))
        self._downloads = count()
        self._removing: asyncio.Future[None] | None = None
        """A thread that removes old sums."""
        self._sums: Gathering | None = None
        """The fetch of the current step's sums, while it runs."""
        self._indices: dict[int, set[bytes]] = {}
        """{step: the indices of its fetched sums}. If the sums of a step are requested again, the fetched ones were not
        the decided ones.
        """
        self._nbytes = 0
        self._told_at = 0.0

    # ------------------------------------------------------------ states

    async def state(self, order: LoadState, own: Checkpoint | None) -> Shard:
        """Fetch the live state from the donors of an order. Raises StateError, OSError.

        Pieces that `own` contains, or that arrived earlier, are not fetched again.
        """
        limit = shard_limit(parameter_shapes(self._manifest.model, order.stage))
        gathering = self._gathering(PieceKind.STATE, order.stage, order.version, limit, order.donors)
        others = [other for other in self._folder.glob("state-*") if other != gathering.path]
        await in_thread(_remove, others)
        if own is not None and not gathering.path.exists():
            await in_thread(_seed, gathering.path, own.path)
        shard = await in_thread(self._parse, await gathering.run(), order.stage)
        run_hash = self._manifest.hash
        check_meta(shard.meta, "the donors", run_hash=run_hash, stage=order.stage, version=order.version)
        return shard

    async def archived(self, order: LoadState, archive: Actor, own: Checkpoint | None) -> Shard | None:
        """Fetch a checkpoint from a coordinator's archive; None if `own` is the same. Raises StateError, OSError."""
        parameters = parameter_shapes(self._manifest.model, order.stage)
        path = self._folder / f"archived-{order.stage}-{order.version}-{next(self._downloads)}"
        receiver = ShardReceiver(
            self._manifest.hash, order.stage, order.version, parameters, path, f"the archive of {archive}"
        )
        request = CheckpointRequest(order.stage, order.version).encode()
        try:
            chunks = await self._fetch(archive, request, HEADER_BYTES + shard_limit(parameters))
            async with aclosing(chunks):
                async for chunk in chunks:
                    await in_thread(receiver.feed, chunk)
                    if own is not None and own.hash == receiver.hash:
                        return None
            return await in_thread(receiver.finish)
        finally:
            await in_thread(receiver.close)

    def _parse(self, path: Path, stage: int) -> Shard:
        """Read the state in a file, and remove the file's name. Raises StateError, OSError."""
        try:
            shapes = state_shapes(parameter_shapes(self._manifest.model, stage))
            return open_shard(path, "the donors", shapes=shapes)
        finally:
            path.unlink()

    # ------------------------------------------------------------ sums

    async def sums(self, order: FetchSums, most_buckets: int) -> bool:
        """Execute a FetchSums. Return False if the fetch is already running; it continues with these donors. Raises
        StateError, OSError.

        `most_buckets`: the largest number of buckets that the sums may have.
        """
        if self._removing is not None:  # a step of the same number may have been fetched before a rollback
            with suppress(OSError):  # sums that are still there are tried again at the next removal
                await asyncio.shield(self._removing)
        running, donors = self._sums, tuple(Donor(actor, number) for number, actor in enumerate(order.donors))
        if running is not None and (running.stage, running.version) == (order.stage, order.step):
            running.donors.named = donors
            return False
        largest = max(largest_bucket(self._manifest.sums), largest_exact(self._manifest.sums))
        limit = SumsFile.limit(most_buckets, largest)
        gathering = self._gathering(PieceKind.SUMS, order.stage, order.step, limit, donors)
        if gathering.path.exists():  # the sums were fetched before, and were wrong
            gathering.path.unlink()
            gathering.wrong = frozenset(self._indices.get(order.step, ()))
        self._sums = gathering
        try:
            await gathering.run()
            if gathering.index is not None:
                self._indices.setdefault(order.step, set()).add(gathering.index.encode())
        finally:
            if self._sums is gathering:
                self._sums = None
        return True

    async def fetched_sums(self, stage: int, step: int) -> bytes:
        """The file with a step's sums. Raises OSError."""
        return await in_thread(self._path(PieceKind.SUMS, stage, step).read_bytes)

    def forget_sums(self, step: int) -> None:
        """The steps up to this one are applied, so remove their sums."""
        self._remove_sums(path for path in self._folder.glob("sums-*") if int(path.name.rsplit("-", 1)[1]) <= step)
        self._indices = {other: indices for other, indices in self._indices.items() if other > step}

    def drop_sums(self) -> None:
        """Another state is loaded: remove all sums, and forget the fetch of sums, which the caller cancels, and which
        indices were wrong. After a rollback, the same steps may be decided again, with the sums that were wrong before.
        """
        self._remove_sums(self._folder.glob("sums-*"))
        self._sums = None
        self._indices.clear()

    def _remove_sums(self, paths: Iterable[Path]) -> None:
        if old := list(paths):
            self._removing = asyncio.ensure_future(in_thread(_remove, old))

    async def close(self) -> None:
        await in_thread(_remove, self._folder.glob("sums-*"))

    # ------------------------------------------------------------

    def _gathering(self, kind: PieceKind, stage: int, version: int, limit: int, donors: tuple[Donor, ...]) -> Gathering:
        path = self._path(kind, stage, version)
        source = DonorList(donors, self._emit)
        return Gathering(kind, stage, version, limit, path, self._fetch, self._emit, self._progress, source)

    def _path(self, kind: PieceKind, stage: int, version: int) -> Path:
        return self._folder / f"{kind.value}-{stage}-{version}"

    def _progress(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if (now := time.monotonic()) - self._told_at >= 1.0:
            self._told_at = now
            self._come(self._nbytes)


def _seed(path: Path, own: Path) -> None:
    """Put the content of a file on this disk at the start, if possible. Pieces that it lacks come from the donors."""
    made = path.with_name(f"{path.name}.own")
    try:
        shutil.copyfile(own, made)
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)


def _remove(paths: Iterable[Path]) -> None:
    """Remove files. Run it in a thread: on a busy disk, removing a large file takes seconds."""
    for path in paths:
        path.unlink(missing_ok=True)
