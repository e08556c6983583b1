"""Copies arriving bodies to pinned memory for a GPU, in a thread of its own.

A dense body has megabytes. If the compute thread copied it, the device would wait for its next kernels meanwhile.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from swarm.buffer import Buffer
from swarm.compute.host_copy import pinned
from swarm.protocol.ids import PassId
from swarm.protocol.peer.io import Backward, Discard, Forward

MOST = 16
"""Largest number of bodies that are copied in advance. The compute thread copies further ones."""

_Key = tuple[type[Forward | Backward], PassId, int]


class Arrivals:
    """The copies of one engine. `expect`, `begin` and `discard`: for any thread; `of`: for the compute thread."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, name)
        self._copies: dict[_Key, Future[memoryview]] = {}

    def expect(self, action: Forward | Backward) -> None:
        """Start to copy the body of an ordered forward or backward."""
        if len(self._copies) < MOST and isinstance(action.payload, Buffer):
            self._copies[_key(action)] = self._thread.submit(self._copied, action.payload)

    def of(self, action: Any) -> memoryview | None:
        """The copy of the body, or None if there is none. The caller must keep it until the device has read it."""
        copy = self._copies.pop(_key(action), None)
        if copy is None or copy.cancelled() or copy.exception() is not None:
            return None  # the compute thread copies the body itself, and reports the error if there is one
        return copy.result()

    def begin(self, pass_id: PassId) -> None:
        """Drop the copies for other passes."""
        for key in list(self._copies):
            if key[1] != pass_id:
                self._forget(key)

    def discard(self, order: Discard) -> None:
        """Drop the copy for a forward that will not be computed."""
        self._forget((Forward, order.pass_id, order.microbatch))

    def close(self) -> None:
        """Stop the thread; copies that have not started are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _forget(self, key: _Key) -> None:
        if (copy := self._copies.pop(key, None)) is not None:
            copy.cancel()

    def _copied(self, payload: Buffer) -> memoryview:
        read = np.frombuffer(payload, dtype=np.uint8)
        copy = pinned((len(read),), torch.uint8, self._device).numpy()
        copy[...] = read  # numpy releases the GIL; a copy between memoryviews would not
        return copy.data


def _key(action: Any) -> _Key:
    return type(action), action.pass_id, action.microbatch
