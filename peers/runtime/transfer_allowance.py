"""How often one device may fetch the same content from this process: a state, or the sums of a step.

An honest peer fetches each about once, in pieces from several donors. A device that fetches a state again and again
would use up a volunteer's uplink for nothing. So each device may fetch a few copies at once, and later one copy every
ten minutes. What exceeds this is refused as busy, so the requester asks other donors, or this one later.

After a rollback, honest peers need states and sums of the same numbers again. So the caller names a content by
something that is new after a rollback, not by its number alone.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from dataclasses import replace

from swarm.buffer import Buffer
from swarm.events import Event, RequesterSlowed
from swarm.net.bulk import Busy, Transfer
from swarm.net.token_bucket import TokenBucket

COPIES = 4.0
"""Number of copies that a device may fetch at once: a newcomer may be killed while it loads, and begin anew."""
COPY_S = 600.0
"""Seconds after which it may fetch one more copy."""
LEAST_BYTES = 16 << 20
"""A smaller content counts as a part of a copy of this size: small states cost a volunteer nothing."""
_LEFT = 1e-6
"""Copies that must be left, so that a device may fetch more."""
MAX_COUNTED = 4096
"""Largest number of counted pairs of device and content. The least recently used one is forgotten first."""


class TransferAllowance:
    """The limits that one process applies to all others. Used in one event loop."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._clock = clock
        self._of: dict[tuple[str, Hashable], TokenBucket] = {}
        """The bucket of each device and content, in order of use. One token is one copy."""
        self._told: set[str] = set()

    def check(self, peer: str, content: Hashable, whole: int) -> None:
        """Raises Busy if the device `peer` has used up its allowance for a content, which has `whole` bytes."""
        if (wait_s := self._bucket(peer, content).wait(_LEFT, self._clock())) <= 0:
            return
        if peer not in self._told and len(self._told) < MAX_COUNTED:
            self._told.add(peer)
            self._emit(RequesterSlowed(peer, whole))
        raise Busy(f"you have fetched this {COPIES:g} times from here: ask again in {wait_s:.0f} s")

    def charge(self, peer: str, content: Hashable, nbytes: int, whole: int) -> None:
        """Count `nbytes` of a content of `whole` bytes that are sent to the device `peer`."""
        self._bucket(peer, content).charge(nbytes / max(whole, LEAST_BYTES), self._clock())

    def counted(self, peer: str, content: Hashable, transfer: Transfer) -> Transfer:
        """The same transfer, but what is sent of it counts. Raises Busy."""
        self.check(peer, content, transfer.total)

        async def chunks() -> AsyncGenerator[Buffer, None]:
            async with aclosing(transfer.chunks):
                async for chunk in transfer.chunks:
                    self.charge(peer, content, len(memoryview(chunk)), transfer.total)
                    yield chunk

        return replace(transfer, chunks=chunks())

    def _bucket(self, peer: str, content: Hashable) -> TokenBucket:
        bucket = self._of.pop((peer, content), None) or TokenBucket(1.0 / COPY_S, COPIES, self._clock())
        while len(self._of) >= MAX_COUNTED:
            del self._of[next(iter(self._of))]
        self._of[peer, content] = bucket
        return bucket
