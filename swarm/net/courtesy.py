"""Courtesy: state transfers yield to training traffic when the uplink rate is unknown.

A training message is usually held up because the uplink is full; but the receiver's link may be full, or the receiver
gone. So while one is held up, other traffic gets a quarter of the highest recent sending rate of this process: as much
as beside a reduction under a limit (see uplink.py), whatever the cause is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from swarm.net.lane import MAX_PIECE

SHARE = 0.25
LEAST = float(MAX_PIECE)
"""Bytes/s that other traffic always gets."""
WINDOW_S = 4.0
"""Longer than the buffers below take to fill."""
WINDOWS = 15


class Courtesy:
    """For one process. Used in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._speed = Speed(clock())
        self._held = 0
        """Number of training pieces that are being written."""
        self._free = asyncio.Event()
        """Set when there are none any more."""
        self._next_at = clock()
        """When a piece of other traffic may leave while there are some."""

    def lane(self, gives_way: bool) -> CourteousLane:
        """A lane for one kind of traffic."""
        return CourteousLane(self, gives_way)

    def begin(self) -> None:
        """A piece of training traffic is about to be written."""
        self._held += 1

    def end(self) -> None:
        """The piece is written."""
        self._held -= 1
        if not self._held:
            self._free.set()

    async def give_way(self, nbytes: int) -> None:
        """Wait until a piece of other traffic may leave."""
        while self._held and (wait := self._next_at - self._clock()) > 0:
            self._free.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._free.wait()
            except TimeoutError:
                pass
        now = self._clock()
        self._next_at = now + nbytes / max(LEAST, SHARE * self._speed.fastest) if self._held else now

    def sent(self, nbytes: int) -> None:
        """Bytes of either kind were sent."""
        self._speed.add(nbytes, self._clock())


class CourteousLane:
    """One kind of traffic, which goes first or gives way. Implements Lane."""

    piece = MAX_PIECE

    def __init__(self, courtesy: Courtesy, gives_way: bool) -> None:
        self._courtesy = courtesy
        self._gives_way = gives_way

    def frame(self) -> int:
        """Irrelevant: frames are not sorted here."""
        return 0

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece may leave."""
        if self._gives_way:
            await self._courtesy.give_way(nbytes)
        else:
            self._courtesy.begin()

    def wrote(self, nbytes: int) -> None:
        """A piece is written."""
        if not self._gives_way:
            self._courtesy.end()
        self._courtesy.sent(nbytes)


class Speed:
    """The sending rate in the fastest of the last `WINDOWS` windows."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._sent: deque[int] = deque([0], maxlen=WINDOWS)

    def add(self, nbytes: int, now: float) -> None:
        if now - self._began >= WINDOW_S:
            self._began = now
            self._sent.append(0)
        self._sent[-1] += nbytes

    @property
    def fastest(self) -> float:
        """Bytes/s."""
        return max(self._sent) / WINDOW_S
