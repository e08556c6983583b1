"""Pipes: when a packet that enters a link now comes out of it, if it does. Pure: time and chance are given.

A pipe is one direction: a queue in front of a transmitter of a certain rate, then a way that takes time, and loses some
packets. What it holds never overtakes: jitter delays packets, as routers do, and does not reorder them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

QUEUE_S = 0.2
"""A full queue drops what comes: a home router's, 200 ms at the link's rate."""
_LEAST_QUEUE = 65_536
"""Bytes. A slow link's queue holds some packets all the same."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a link is like in one direction."""

    rate: int | None = None
    """Bytes a second; None: no limit."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Each packet takes up to so much longer, uniformly."""
    loss: float = 0.0
    """Share of packets that are lost, each by itself."""


UNLIMITED = Shape()


class Pipe:
    """One direction of a link. `admit` a packet; `lossless` pipes, as of bytes in a TCP stream, only delay."""

    def __init__(self, shape: Shape, random: Random, *, lossless: bool = False) -> None:
        self.shape = shape
        self.cut = False
        """Nothing comes through."""
        self._random = random
        self._lossless = lossless
        self._free_at = 0.0
        self._last_out = 0.0

    @property
    def free_at(self) -> float:
        """When the transmitter has sent all that it holds."""
        return self._free_at

    @property
    def plain(self) -> bool:
        """Whether it does nothing at all."""
        return not self.cut and self.shape == UNLIMITED

    def admit(self, now: float, nbytes: int) -> float | None:
        """Seconds at which a packet of `nbytes` that enters `now` comes out, or None: it never does."""
        shape = self.shape
        if not self._lossless:
            if self.cut or (shape.loss and self._random.random() < shape.loss):
                return None
            backlog = self._free_at - now
            if shape.rate is not None and backlog > max(QUEUE_S, _LEAST_QUEUE / shape.rate):
                return None
        sent = max(self._free_at, now)
        if shape.rate is not None:
            sent += nbytes / shape.rate
            self._free_at = sent
        out = sent + shape.delay_s
        if shape.jitter_s:
            out += self._random.random() * shape.jitter_s
        self._last_out = max(self._last_out, out)
        return self._last_out
