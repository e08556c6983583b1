"""The rates of the links to this process, measured on the frames that come in.

Only a receiver can measure them: buffers of megabytes between a sender and the link take a frame at any rate. The time
from a payload's header to its last byte is the time of the link, once the payload is larger than what arrives at once:
data from a link comes in encrypted messages of at most 64 KiB, each delivered whole. So small frames are not measured,
and need not be: they are short anyway.

A frame that shares the link with others seems slow, and one that waited while this process was busy seems fast. So the
median of the last ones is taken.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor
from swarm.protocol.timeouts import Observed

AT_ONCE = 64 << 10
"""Bytes of a payload that may arrive with its header: they are not counted."""
LEAST = 2 * AT_ONCE
"""A payload of fewer bytes is not measured."""
FASTEST = 1e12
"""Upper bound of a rate, bytes/s."""
MOST_SENDERS = 256


class LinkRates:
    """By sender, over the last frames (timeouts.WINDOW). Of more than MOST_SENDERS the first known is forgotten."""

    def __init__(self) -> None:
        self._seconds_per_byte: dict[Actor, Observed] = {}

    def arrived(self, sender: Actor, nbytes: int, seconds: float) -> None:
        """A payload has come in. `seconds`: since its header was there."""
        if nbytes < LEAST:
            return
        observed = self._seconds_per_byte.setdefault(sender, Observed())
        observed.add(max(seconds / (nbytes - AT_ONCE), 1 / FASTEST))
        if len(self._seconds_per_byte) > MOST_SENDERS:
            del self._seconds_per_byte[next(iter(self._seconds_per_byte))]

    def of(self, sender: Actor) -> float | None:
        """Bytes/s; None: unknown."""
        observed = self._seconds_per_byte.get(sender)
        seconds = None if observed is None else observed.quantile(0.5)
        return None if seconds is None else 1 / seconds

    def slowest(self, count: int) -> list[tuple[Actor, float]]:
        """At most `count` senders with the bytes/s of their links, the slowest first."""
        return sorted(self._rates(), key=lambda rate: rate[1])[:count]

    def fastest(self, count: int) -> list[tuple[Actor, float]]:
        return sorted(self._rates(), key=lambda rate: -rate[1])[:count]

    def _rates(self) -> list[tuple[Actor, float]]:
        medians = ((sender, observed.quantile(0.5)) for sender, observed in self._seconds_per_byte.items())
        return [(sender, 1 / median) for sender, median in medians if median is not None]
