"""The uplink: limits how much this process sends, and decides what goes first.

A token bucket says when bytes may leave; start-time fair queueing (Goyal, Vin and Cheng, 1996) says which bytes. A lane
is a kind of traffic with a weight: lanes with data to send share the rate by their weights, and an unused share goes to
the others. Within a lane frames go one after another, so that the second does not slow down the first. The urgent lane
never waits; the others pay for its bytes.

Frames are written in pieces of a fortieth of a second, and waiting data is not handed to the socket: the queues below
stay empty, so that urgent messages, and other users of the link, find it free.
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
"""Bytes/s. With less, not even heartbeats and the address book get through."""
BURST_S = 0.1
"""Seconds of the rate that may leave at once: the process may sleep this long without losing some of its share."""

_LEAST_BURST = 4096
_PIECES = 4  # in a burst

Item = TypeVar("Item")


def bucket_of(rate: float, now: float) -> TokenBucket:
    """The tokens of an uplink, full: one for each byte. `rate`: bytes/s."""
    return TokenBucket(rate, max(rate * BURST_S, _LEAST_BURST), now)


@dataclass(order=True)
class Waiting(Generic[Item]):
    """A request in the line."""

    frame: int
    arrival: int
    nbytes: int = field(compare=False)
    item: Item = field(compare=False)


class Line(Generic[Item]):
    """Decides which request is next. While two lanes wait, their bytes ÷ weight differ by a piece of each at most."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[Waiting[Item]]] = {}
        self._start: dict[Hashable, float] = {}
        """Virtual time at which the next request of a waiting lane begins."""
        self._finish: dict[Hashable, float] = {}
        self._virtual = 0.0
        self._arrivals = itertools.count()

    def join(self, lane: Hashable, frame: int, nbytes: int, item: Item) -> None:
        """Requests of a lane are served in the order of their frames."""
        waiting = self._waiting.setdefault(lane, [])
        if not waiting:
            self._start[lane] = max(self._virtual, self._finish.get(lane, 0.0))
        heapq.heappush(waiting, Waiting(frame, next(self._arrivals), nbytes, item))

    def first(self) -> tuple[Hashable, Waiting[Item]] | None:
        """The lane and request whose turn it is."""
        lane = min(self._waiting, key=self._start.__getitem__, default=None)
        return None if lane is None else (lane, self._waiting[lane][0])

    def serve(self, lane: Hashable, weight: float) -> Item:
        """Take out the next request of a lane that waits, and count its bytes."""
        self._virtual = self._start[lane]
        request = self._leave(lane)
        self._finish[lane] = self._start[lane] = self._virtual + request.nbytes / weight
        return request.item

    def drop(self, lane: Hashable) -> Item:
        """Take out the next request of a waiting lane: it was cancelled."""
        return self._leave(lane).item

    def _leave(self, lane: Hashable) -> Waiting[Item]:
        waiting = self._waiting[lane]
        request = heapq.heappop(waiting)
        if not waiting:
            del self._waiting[lane]
        return request


class Uplink:
    """The limit of one process. Used in one event loop."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate`: bytes/s, at least LEAST_RATE."""
        assert rate >= LEAST_RATE, "checked where it was given"
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
        """The number of a frame that begins now."""
        return next(self._frames)

    def charge(self, nbytes: int) -> None:
        self._bucket.charge(nbytes, self._clock())

    async def take(self, lane: LimitedLane, frame: int, nbytes: int) -> None:
        """Wait for the turn of a piece."""
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
            # in the loop's next round: first the served lane requests its next piece, else it would look empty
            self._next = loop.call_soon(self._serve)
            return


class LimitedLane:
    """Requests pieces under a limit for one kind of traffic. Implements Lane."""

    def __init__(self, uplink: Uplink, weight: float | None) -> None:
        self._uplink = uplink
        self.weight = weight
        self.piece = uplink.piece

    def frame(self) -> int:
        """A place in the lane for a frame that begins now."""
        return self._uplink.frame()

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece of at most `piece` bytes may leave."""
        if self.weight is None:
            self._uplink.charge(nbytes)
        else:
            await self._uplink.take(self, frame, nbytes)

    def wrote(self, nbytes: int) -> None:
        """The piece was paid for before."""
