"""Lets state transfers yield to training traffic when the uplink rate is unknown.

If the write of a training message blocks, the uplink is usually full; but the receiver's link may be full instead, or
the receiver gone. So other traffic does not stop completely: while such a write is in progress, it gets a quarter of
the highest recent sending rate of this process. On an uplink with a known limit, it would get the same share beside a
reduction (see uplink.py). A write counts only for a while: if its stream carries far less than its share of this
process's rate, its receiver reads slowly, perhaps on purpose.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from swarm.net.lane import MAX_PIECE

SHARE = 0.25
LEAST = float(MAX_PIECE)
"""Lowest rate of other traffic, bytes/s."""
STUCK_S = 20.0
"""Seconds for which a stream's blocked writes say that the uplink is full, although the stream carries almost nothing.
On a line of 1 Mbit/s that 16 streams share, a piece takes about 8 s.
"""
FAIR = 8.0
"""A stream carries its share if its pieces take at most this multiple of the time that they would take if all blocked
streams shared the rate that is left to other traffic. The uplink may have become slower than it recently was.
"""
WINDOW_S = 4.0
"""Seconds over which a sending rate is measured: longer than the socket and daemon buffers take to fill."""
WINDOWS = 15


class Courtesy:
    """Decides when other traffic of this process may be sent. Used in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._speed = Speed()
        self._held: dict[object, float] = {}
        """For each writer of a training piece, when it began to write it."""
        self._credit: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """For each writer, the number of seconds for which its next blocked write counts; STUCK_S if it is absent. If
        it is not positive, the write does not count: the stream must carry its share for a while first.
        """
        self._free = asyncio.Event()
        """An event that is set while no training piece is being written."""
        self._next_at = clock()
        """Time at which other traffic may send its next piece although training pieces are being written."""

    def lane(self, gives_way: bool) -> CourteousLane:
        """A lane for one kind of traffic. `gives_way`: False for training traffic, True for other traffic."""
        return CourteousLane(self, gives_way)

    def begin(self) -> None:
        """Call before a piece of training traffic is written. Each task writes one piece at a time."""
        self._held[asyncio.current_task()] = self._clock()

    def end(self, nbytes: int) -> None:
        """Call after a piece of training traffic is written, in the same task."""
        writer = asyncio.current_task()
        streams, began = len(self._held), self._held.pop(writer, None)
        if began is not None:
            now = self._clock()
            fair_s = FAIR * streams * nbytes / max(LEAST, SHARE * self._speed.fastest(now))
            left_s = self._credit.get(writer, STUCK_S) - (now - began)
            self._credit[writer] = min(STUCK_S, max(-STUCK_S, left_s) + fair_s)
        if not self._held:
            self._free.set()

    async def give_way(self, nbytes: int) -> None:
        """Wait until a piece of other traffic may be sent."""
        while self._is_held and (wait := self._next_at - self._clock()) > 0:
            self._free.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._free.wait()
            except TimeoutError:
                pass
        now = self._clock()
        self._next_at = now + nbytes / max(LEAST, SHARE * self._speed.fastest(now)) if self._is_held else now

    @property
    def _is_held(self) -> bool:
        now = self._clock()
        return any(now - began < self._credit.get(writer, STUCK_S) for writer, began in self._held.items())

    def sent(self, nbytes: int) -> None:
        """Count sent bytes of either kind of traffic."""
        self._speed.add(nbytes, self._clock())


class CourteousLane:
    """The lane of one kind of traffic, which either goes first or gives way. Implements Lane."""

    piece = MAX_PIECE

    def __init__(self, courtesy: Courtesy, gives_way: bool) -> None:
        self._courtesy = courtesy
        self._gives_way = gives_way

    def frame(self) -> int:
        """Always 0: this lane does not order frames."""
        return 0

    async def take(self, frame: int, nbytes: int) -> None:
        """Wait until a piece may be sent."""
        if self._gives_way:
            await self._courtesy.give_way(nbytes)
        else:
            self._courtesy.begin()

    def wrote(self, nbytes: int) -> None:
        """Count a written piece."""
        if not self._gives_way:
            self._courtesy.end(nbytes)
        self._courtesy.sent(nbytes)


class Speed:
    """The highest sending rate in a window that began in the last `WINDOWS * WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._windows: deque[tuple[float, int]] = deque(maxlen=WINDOWS)
        """For each window, when it began and the bytes sent in it. A window begins when something is sent."""

    def add(self, nbytes: int, now: float) -> None:
        began, sent = self._windows[-1] if self._windows else (-math.inf, 0)
        if now - began < WINDOW_S:
            self._windows[-1] = (began, sent + nbytes)
        else:
            self._windows.append((now, nbytes))

    def fastest(self, now: float) -> float:
        """The sending rate in the fastest window, bytes/s; 0 if nothing was sent for a minute, as at the start.

        Older windows do not count, because the line may have become slower.
        """
        since = now - WINDOWS * WINDOW_S
        return max((sent for began, sent in self._windows if began > since), default=0) / WINDOW_S
