"""Bodies that a GPU is to compute with: copied to where it reads them, in a thread beside the compute thread.

A dense body has megabytes. The compute thread would copy it while the device waits for its next kernels.
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
"""Bodies that are copied ahead of their turn. The compute thread copies the others."""

_Key = tuple[type[Forward | Backward], PassId, int]


class Arrivals:
    """Of one engine. `expect`, `begin` and `discard` are for any thread, `of` is for the compute thread."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, name)
        self._copies: dict[_Key, Future[memoryview]] = {}

    def expect(self, action: Forward | Backward) -> None:
        """Begin to copy the body of what is ordered."""
        if len(self._copies) < MOST and isinstance(action.payload, Buffer):
            self._copies[_key(action)] = self._thread.submit(self._copied, action.payload)

    def of(self, action: Any) -> memoryview | None:
        """The body's copy, which the caller holds until the device has read it. None: there is none."""
        copy = self._copies.pop(_key(action), None)
        if copy is None or copy.cancelled() or copy.exception() is not None:
            return None  # the compute thread makes one, and tells what is wrong
        return copy.result()

    def begin(self, pass_id: PassId) -> None:
        """Bodies of other passes are of no use."""
        for key in list(self._copies):
            if key[1] != pass_id:
                self._forget(key)

    def discard(self, order: Discard) -> None:
        """The forward of this microbatch is not computed."""
        self._forget((Forward, order.pass_id, order.microbatch))

    def close(self) -> None:
        """Copies that are not begun are given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _forget(self, key: _Key) -> None:
        if (copy := self._copies.pop(key, None)) is not None:
            copy.cancel()

    def _copied(self, payload: Buffer) -> memoryview:
        read = np.frombuffer(payload, dtype=np.uint8)
        copy = pinned((len(read),), torch.uint8, self._device).numpy()
        copy[...] = read  # with this other threads go on, with a memoryview's copy they would not
        return copy.data


def _key(action: Any) -> _Key:
    return type(action), action.pass_id, action.microbatch
