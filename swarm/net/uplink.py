"""The uplink: limits the sending rate of this process, and decides which data is sent first.

A token bucket decides when bytes may be sent; start-time fair queueing (Goyal, Vin and Cheng, 1996) decides which
bytes. A lane is a kind of traffic with a weight. Lanes with data to send share the rate by their weights; an unused
share goes to the others. The frames of a lane are sent one after another, so that a later frame does not slow down an
earlier one. The urgent lane never waits; its bytes are subtracted from the rate of the others.

Frames are written in pieces that take a fortieth of a second, and data that must wait is not given to the socket. So
the buffers of socket and router stay empty, and urgent messages and other users of the link are not delayed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from swarm.net.lane import MAX_PIECE
from swarm.net.token_bucket import TokenBucket

LEAST_RATE = 8000
"""Lowest supported rate, bytes/s. A lower one is not enough even for heartbeats and address lists."""
BURST_S = 0.1
"""Size of a burst, in seconds of the rate. If this process pauses for at most this time, it can still use the whole
rate.
"""

_LEAST_BURST = 4096
_PIECES = 4  # in a burst

Item = TypeVar("Item")


def bucket_of(rate: float, now: float) -> TokenBucket:
    """A full token bucket for an uplink, with one token per byte. `rate`: bytes/s."""
    return TokenBucket(rate, max(rate * BURST_S, _LEAST_BURST), now)


@dataclass(order=True)
class Waiting(Generic[Item]):
    """A request to send a piece, in the queue of its lane."""

    frame: int
    arrival: int
    nbytes: int = field(compare=False)
    item: Item = field(compare=False)


class Line(Generic[Item]):
    """The queues of all lanes, and the choice of the next request.

    While two lanes both wait, their served bytes ÷ weight differ by at most one piece of each.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[Waiting[Item]]] = {}
        self._start: dict[Hashable, float] = {}
        """For each waiting lane, the virtual start time of its next request."""
        self._finish: dict[Hashable, float] = {}
        self._virtual = 0.0
        self._arrivals = itertools.count()

    def join(self, lane: Hashable, frame: int, nbytes: int, item: Item) -> None:
        """Add a request. The requests of a lane are served in the order of their frames."""
        waiting = self._waiting.setdefault(lane, [])
        if not waiting:
            self._start[lane] = max(self._virtual, self._finish.get(lane, 0.0))
        heapq.heappush(waiting, Waiting(frame, next(self._arrivals), nbytes, item))

    def first(self) -> tuple[Hashable, Waiting[Item]] | None:
        """The next request and its lane; None if no lane waits."""
        lane = min(self._waiting, key=self._start.__getitem__, default=None)
        return None if lane is None else (lane, self._waiting[lane][0])

    def serve(self, lane: Hashable, weight: float) -> Item:
        """Remove the next request of a waiting lane, and count its bytes as sent."""
        self._virtual = self._start[lane]
        request = self._leave(lane)
        self._finish[lane] = self._start[lane] = self._virtual + request.nbytes / weight
        return request.item

    def drop(self, lane: Hashable) -> Item:
        """Remove the next request of a waiting lane without counting it, because it was cancelled."""
        return self._leave(lane).item

    def _leave(self, lane: Hashable) -> Waiting[Item]:
        waiting = self._waiting[lane]
        request = heapq.heappop(waiting)
        if not waiting:
            del self._waiting[lane]
        return request


class Uplink:
    """The sending limit of one process. Used in one event loop."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate`: bytes/s, at least LEAST_RATE."""
        assert rate >= LEAST_RATE, "the rate must be checked where the user gives it"
        self.rate = rate
        self._clock = clock
        self._bucket = bucket_of(rate, clock())
        self.piece = max(1, min(MAX_PIECE, int(self._bucket.burst) // _PIECES))
        """Bytes that are written at a time."""
        self._line: Line[asyncio.Future[None]] = Line()
        self._frames = itertools.count()
        self._next: asyncio.Handle | None = None

    def lane(self, weight: float | None) -> LimitedLane:
        """A lane for one kind of traffic. `weight` None: urgent."""
        return LimitedLane(self, weight)

    def frame(self) -> int:
        """A number for a new frame, higher than that of all earlier frames."""
        return next(self._frames)

    def charge(self, nbytes: int) -> None:
        self._bucket.charge(nbytes, self._clock())

    async def take(self, lane: LimitedLane, frame: int, nbytes: int) -> None:
        """Wait until a piece of this lane may be sent."""
        turn = asyncio.get_running_loop().create_future()
        self._line.join(lane, frame, nbytes, turn)
        if self._next is None:
            self._serve()
        await turn

    def _serve(self) -> None:
        self._next = None
        while (found := self._line.first()) is not None:
            lane, request = found
            if request.item.done():  # the waiter was cancelled
                self._line.drop(lane)
                continue
            loop = asyncio.get_running_loop()
            now = self._clock()
            if not self._bucket.take(request.nbytes, now):
                self._next = loop.call_later(self._bucket.wait(request.nbytes, now), self._serve)
                return
            assert isinstance(lane, LimitedLane) and lane.weight is not None
            self._line.serve(lane, lane.weight).set_result(None)
            # continue in the next iteration of the event loop, after the served lane has requested its next piece
            self._next = loop.call_soon(self._serve)
            return


class LimitedLane:
    """The lane of one kind of traffic on a limited uplink. Implements Lane."""

    def __init__(self, uplink: Uplink, weight: float | None) -> None:
        self._uplink = uplink
        self.weight = weight
        self.piece = uplink.piece

    def frame(self) -> int:
        """A sequence number that puts a new frame behind the earlier frames of this lane."""
        return self._uplink.frame()

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece of at most `piece` bytes may be sent."""
        if self.weight is None:
            self._uplink.charge(nbytes)
        else:
            await self._uplink.take(self, frame, nbytes)

    def wrote(self, nbytes: int) -> None:
        """Does nothing: `take` has already counted the piece."""
