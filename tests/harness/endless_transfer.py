"""A transfer that never ends by itself, and records when it was ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from swarm.net.bulk import Transfer
from swarm.protocol.ids import Actor

NBYTES = 1 << 40
"""The announced number of bytes. No test waits for so many."""


class EndlessTransfer:
    """The transfer. `begins` is called when the first chunk is requested."""

    def __init__(self, chunk: int, begins: Callable[[], None] = lambda: None) -> None:
        self.ended = asyncio.Event()
        self._chunk = chunk
        self._begins = begins

    async def handler(self, _requester: Actor, _request: bytes) -> Transfer:
        return Transfer(NBYTES, self._chunks())

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        self._begins()
        try:
            while True:
                yield bytes(self._chunk)
        finally:
            self.ended.set()
