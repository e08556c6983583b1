"""Courtesy: state lets training's messages pass, on a line of which nobody has told how fast it is.

What holds up a message of training is that the line is full, as a rule. While one is held up, other traffic gets its
share by weight of what training sends, as it would under a limit (see uplink.py), and needs to know no rate for that.
The reason may also be a receiver that is slow, or gone: so other traffic always gets a piece a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from swarm.net.lane import MAX_PIECE

LONGEST_WAIT_S = 1.0


class Courtesy:
    """Of one process. Used in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held = 0
        """Pieces of training that are being written."""
        self._credit = 0.0
        """What training has sent and others have not had their share of, up to a piece: bytes ÷ weight."""
        self._served_at = clock()
        """When a piece of other traffic left last."""
        self._moved = asyncio.Event()

    def lane(self, weight: float, gives_way: bool) -> CourteousLane:
        """A kind of traffic."""
        return CourteousLane(self, weight, gives_way)

    def begin(self) -> None:
        """A piece of training is about to be written."""
        self._held += 1

    def end(self, cost: float) -> None:
        """It is. `cost`: its bytes ÷ weight."""
        self._held -= 1
        self._credit = min(self._credit + cost, MAX_PIECE)
        self._moved.set()

    async def give_way(self, cost: float) -> None:
        """Wait until a piece of other traffic may leave. `cost`: its bytes ÷ weight."""
        while self._held and self._credit < cost:
            patience = self._served_at + LONGEST_WAIT_S - self._clock()
            if patience <= 0:
                break
            self._moved.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._moved.wait()
            except TimeoutError:
                pass
        if self._held:
            self._credit = max(0.0, self._credit - cost)
        self._served_at = self._clock()


class CourteousLane:
    """One kind of traffic, which goes first or gives way. Implements Lane."""

    piece = MAX_PIECE

    def __init__(self, courtesy: Courtesy, weight: float, gives_way: bool) -> None:
        self._courtesy = courtesy
        self._weight = weight
        self._gives_way = gives_way

    def frame(self) -> int:
        """No matter: nothing is sorted here."""
        return 0

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece may leave."""
        if self._gives_way:
            await self._courtesy.give_way(nbytes / self._weight)
        else:
            self._courtesy.begin()

    def wrote(self, nbytes: int) -> None:
        """A piece is written."""
        if not self._gives_way:
            self._courtesy.end(nbytes / self._weight)
