"""Collects one verified copy of every stage's checkpoint into the archive, from any replica that holds it.

In a group of coordinators, it also collects from the archives of other coordinators.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.thread_work import NoThread, to_its_end
from swarm.events import CheckpointRefused, Event
from swarm.net.bulk import LEAST_RATE, TooSlow
from swarm.net.bulk_exchange import BulkExchange
from swarm.protocol.coordinator.io import CollectCheckpoint
from swarm.protocol.ids import Actor
from swarm.protocol.timeouts import LEAST_LINE
from swarm.state.archive import Archive, NotStored
from swarm.state.error import StateError
from swarm.state.transfer import HEADER_BYTES

FIRST_RATE = LEAST_LINE
"""Bytes/s that the holders of a stage must send at first. While a holder sends faster than the required rate, no other
holder is asked, although it may be slow on purpose. So the rate is not low at first, and it rises again with success.
"""
_TOLD_S = 0.25
"""Seconds between two reports that bytes arrive from a holder."""
_REST_S, _LONGEST_REST_S = 5.0, 120.0
"""Seconds without a fetch after this machine's disk has refused a shard. They double with each failure in a row."""


class Collector:
    """Asks one holder after another. If some holders of a stage were too slow and none was faster, the rate that is
    required for this stage is halved. After a success, it is at least half of the rate at which the copy came.

    `coming(holder)`: called while bytes of the holder's copy arrive. On a slow link, these bytes delay its other
    messages. `unfetched(version, stage)`: called if no holder of a stage has given its copy. It is not called if this
    machine's disk takes no copy, because the holders are not at fault.
    """

    def __init__(
        self,
        exchange: BulkExchange,
        archive: Archive,
        emit: Callable[[Event], None],
        coming: Callable[[Actor], None],
        unfetched: Callable[[int, int], None] = lambda version, stage: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._archive = archive
        self._emit = emit
        self._coming = coming
        self._unfetched = unfetched
        self._clock = clock
        self._least_rates: defaultdict[int, float] = defaultdict(lambda: FIRST_RATE)
        """The required rate of each stage."""
        self._rest_s = 0.0
        self._next_at = -math.inf
        """No fetch begins earlier."""
        self._trouble = ""
        """Why the disk has refused a shard since the last whole checkpoint. Empty: it has refused none."""

    async def collect(self, order: CollectCheckpoint) -> tuple[str, ...]:
        """Fetch the missing stages of a checkpoint. Returns the digests of its stages, in order.

        Returns an empty tuple if some stage could not be fetched. Each holder's reason is reported, and the core
        repeats the order. If the disk refuses a shard, this is reported once, and further orders have no effect for a
        while: each might fetch the whole shard again.
        """
        archive = self._archive
        if self._clock() < self._next_at:
            return ()
        archive.proven = order.proven
        for stage, (holders, file_hash) in enumerate(zip(order.holders, order.digests, strict=True)):
            request = CheckpointRequest(stage, order.version)
            if archive.holds(stage, order.version, file_hash):
                continue
            try:
                if not await self._have(holders, request, file_hash):
                    if not order.from_archive:
                        self._unfetched(order.version, stage)
                    return ()
            except NotStored as error:
                self._rest(error)
                return ()
        self._rest_s, self._trouble = 0.0, ""
        try:
            return tuple(archive.checkpoint(stage, order.version).digest for stage in range(archive.stages))
        except StateError as error:
            self._emit(CheckpointRefused(error.where, error.reason))
            return ()

    async def _have(self, holders: tuple[Actor, ...], request: CheckpointRequest, file_hash: str) -> bool:
        """Try to get a stage's copy from the holders. Return True if some holder's copy is now in the archive. Raises
        NotStored.
        """
        stage, slow = request.stage, False
        least_rate = self._least_rates[stage]
        for holder in holders:
            try:
                rate = await self._fetch(holder, request, file_hash, least_rate)
                self._least_rates[stage] = min(FIRST_RATE, max(least_rate, rate / 2))
                return True
            except NotStored:
                raise
            except (OSError, ValueError, TimeoutError) as error:
                slow = slow or isinstance(error, TooSlow)
                what = f"{holder} stage {stage} version {request.version}"
                self._emit(CheckpointRefused(what, f"not archived: {str(error) or 'no answer in time'}"))
        if slow:
            self._least_rates[stage] = min(self._least_rates[stage], max(LEAST_RATE, least_rate / 2))
        return False

    def _rest(self, error: NotStored) -> None:
        """The disk has refused a shard: fetch nothing for a while, and report the reason unless it is the last one."""
        self._rest_s = min(_LONGEST_REST_S, max(_REST_S, 2 * self._rest_s))
        self._next_at = self._clock() + self._rest_s
        if error.reason != self._trouble:
            self._trouble = error.reason
            self._emit(CheckpointRefused(error.where, error.reason))

    async def _fetch(self, holder: Actor, request: CheckpointRequest, file_hash: str, least_rate: float) -> float:
        """Store a holder's copy. Returns its average rate, bytes/s."""
        began = time.monotonic()
        writer = self._archive.receive(request.stage, request.version, file_hash)
        try:
            limit = HEADER_BYTES + self._archive.limit(request.stage)
            transfer = await self._exchange.fetch(holder, request.encode(), limit, least_rate=least_rate)
            told_at = 0.0
            async for chunk in transfer.chunks:
                writer.feed(chunk)
                if (now := time.monotonic()) - told_at >= _TOLD_S:
                    told_at = now
                    self._coming(holder)
            rate = transfer.total / max(time.monotonic() - began, 1e-3)
            await to_its_end(writer.commit)  # after a cancellation, the file must not appear later
        except NoThread as error:
            raise NotStored(self._archive.directory, f"not archived: {error.strerror}") from error
        finally:
            writer.abort()
        return rate
