"""The rate of the link to the coordinator: noise is sent for a second in each direction, and the receiver measures it.

A new peer requests noise from the coordinator, then asks the coordinator to receive noise. Both ends limit the probe:
bytes, seconds, one probe at a time, and one per minute for each peer. The result is the rate of the slower of the two
machines' links, so it is a lower bound for this machine's link.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from swarm.net.bulk import BulkError, Transfer
from swarm.net.daemon import DialError
from swarm.net.handshake import Refused
from swarm.net.stream import StreamClosed
from swarm.protocol.ids import Actor

DOWN = b"probe: send me noise"
UP = b"probe: take noise from me"
PROBES = (DOWN, UP)
SIZE = 8 << 20
"""Largest number of bytes of noise. A probe ends after `LIMIT_S` in any case."""
LIMIT_S = 1.0
PAUSE_S = 60.0
"""Seconds that must pass between two probes of one peer in the same direction."""
LONGEST_WAIT_S = 4.0
"""Longest wait in seconds for earlier probes; a peer that would wait longer is not measured."""
_PIECE = 64 << 10
_MAX_REMEMBERED = 1 << 12
_MAX_ANSWER = 64
"""Maximum number of bytes of a number as text."""
FAILURES = (BulkError, DialError, Refused, StreamClosed, TimeoutError)


class Fetcher(Protocol):
    async def fetch(self, source: Actor, request: bytes, max_bytes: int) -> Transfer: ...


def noise() -> Transfer:
    """The noise to send. It cannot be compressed on the way."""
    return Transfer(SIZE, _noise())


async def received_rate(transfer: Transfer, limit_s: float = LIMIT_S) -> float:
    """Bytes/s of an answer, measured from its first piece on, for at most `limit_s`. Raises BulkError."""
    loop = asyncio.get_running_loop()
    received, began = 0, 0.0
    async with aclosing(transfer.chunks):
        async for chunk in transfer.chunks:
            if not began:
                began = loop.time()
                continue
            received += len(chunk)
            if loop.time() - began >= limit_s:
                break
    took = loop.time() - began
    if not received or took <= 0:
        raise BulkError("too little arrived to measure the rate")
    return received / took


async def probe_link(network: Fetcher, coordinator: Actor, *, up: bool) -> tuple[float | None, float | None]:
    """(up, down) in bytes/s, to and from the coordinator; None for a direction that could not be measured.

    `up` False: do not measure the direction to the coordinator, because the owner has set a limit.
    """
    down_rate = up_rate = None
    try:
        async with asyncio.timeout(LONGEST_WAIT_S + 3 * LIMIT_S):
            down_rate = await received_rate(await network.fetch(coordinator, DOWN, SIZE))
        if up:
            async with asyncio.timeout(LONGEST_WAIT_S + 3 * LIMIT_S):
                answer = await network.fetch(coordinator, UP, _MAX_ANSWER)
                up_rate = float((await answer.read()).decode("ascii"))
    except (*FAILURES, ValueError):
        pass  # a peer whose link speed is unknown takes part like any other
    return (up_rate if up_rate is not None and 1.0 <= up_rate <= 1e12 else None), down_rate


class Prober:
    """Answers probes at the coordinator. It runs one probe at a time, so that probes do not disturb each other."""

    def __init__(self, network: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._network = network
        self._clock = clock
        self._busy_until = 0.0
        self._last: dict[tuple[str, bytes], float] = {}
        """The time of each peer's last probe: {(peer id, request): time}"""

    async def answer(self, requester: Actor, what: bytes) -> Transfer:
        """The answer to a peer's request (one of `PROBES`). Raises BulkError if it is not the peer's turn."""
        now, key = self._clock(), (requester.peer, what)
        if now - self._last.get(key, -PAUSE_S) < PAUSE_S:
            raise BulkError(f"this link was measured less than {PAUSE_S:g} s ago")
        wait_s = max(0.0, self._busy_until - now)
        if wait_s > LONGEST_WAIT_S:
            raise BulkError("many peers measure their links now")
        self._last.pop(key, None)
        while len(self._last) >= _MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
        self._last[key] = now
        turn = self._busy_until = now + wait_s + 2 * LIMIT_S
        await asyncio.sleep(wait_s)
        if what == DOWN:
            return Transfer(SIZE, self._until_over(turn))
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                rate = await received_rate(await self._network.fetch(requester, DOWN, SIZE))
        except FAILURES as error:
            raise BulkError(f"the measurement failed: {error}") from None
        finally:
            self._over(turn)
        return Transfer.of(f"{rate:.0f}".encode())

    async def _until_over(self, turn: float) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(_noise()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._over(turn)

    def _over(self, turn: float) -> None:
        """A turn has ended early, so the next one need not wait for the rest of it."""
        if self._busy_until == turn:
            self._busy_until = self._clock()


async def _noise() -> AsyncGenerator[bytes, None]:
    piece = os.urandom(_PIECE)
    for _ in range(SIZE // _PIECE):
        yield piece
