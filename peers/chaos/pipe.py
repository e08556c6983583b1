"""Decides when, and whether, a packet that enters a link leaves it. Pure: time and randomness are arguments.

A pipe is one direction: a queue in front of a transmitter of a certain rate, then a delay, with some loss. Packets
never overtake each other: jitter delays packets, as routers do, and does not reorder them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

QUEUE_S = 0.2
"""Length of the queue, in seconds of the link's rate, as in a home router. A full queue drops new packets."""
_LEAST_QUEUE = 65_536
"""Minimum length of the queue, in bytes. Even a slow link's queue holds some packets."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a link in one direction."""

    rate: int | None = None
    """Bytes/s; None: no limit."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Largest extra delay of a packet in seconds, uniformly distributed."""
    loss: float = 0.0
    """Fraction of packets that are lost, independently."""


UNLIMITED = Shape()


class Pipe:
    """One direction of a link. Pass each packet to `admit`. `lossless` pipes, as for bytes in a TCP stream, only
    delay.
    """

    def __init__(self, shape: Shape, random: Random, *, lossless: bool = False) -> None:
        self.shape = shape
        self.cut = False
        """True if the pipe drops everything."""
        self._random = random
        self._lossless = lossless
        self._free_at = 0.0
        self._last_out = 0.0

    @property
    def plain(self) -> bool:
        """True if the pipe changes nothing."""
        return not self.cut and self.shape == UNLIMITED

    def admit(self, now: float, nbytes: int) -> float | None:
        """The time at which a packet of `nbytes` that enters `now` leaves. None: it is lost."""
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
