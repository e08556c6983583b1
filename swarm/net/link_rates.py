"""The rates of the links to this process, measured on incoming frames.

Only the receiver can measure a link: a sender writes into buffers of megabytes, which accept a frame at any rate. The
receiver measures the time from the header to the last byte of a payload. libp2p delivers data in encrypted messages of
at most 64 KiB, each as a whole, so only larger payloads can be measured. Small frames take little time anyway.

A frame that shares the link with others seems too slow; a frame that waited while this process was busy seems too fast.
So the rate of a link is the median over its last frames.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor
from swarm.protocol.timeouts import Observed

AT_ONCE = 64 << 10
"""Bytes of a payload that may arrive together with its header, so they are not counted."""
LEAST = 2 * AT_ONCE
"""Smallest payload that is measured, bytes."""
FASTEST = 1e12
"""Upper bound of a rate, bytes/s."""
MOST_SENDERS = 256


class LinkRates:
    """The rates of the links from all senders, each over its last timeouts.WINDOW frames. If there are more than
    MOST_SENDERS senders, the oldest is forgotten.
    """

    def __init__(self) -> None:
        self._seconds_per_byte: dict[Actor, Observed] = {}

    def arrived(self, sender: Actor, nbytes: int, seconds: float) -> None:
        """Record an incoming payload. `seconds`: time from its header to its last byte."""
        if nbytes < LEAST:
            return
        observed = self._seconds_per_byte.setdefault(sender, Observed())
        observed.add(max(seconds / (nbytes - AT_ONCE), 1 / FASTEST))
        if len(self._seconds_per_byte) > MOST_SENDERS:
            del self._seconds_per_byte[next(iter(self._seconds_per_byte))]

    def of(self, sender: Actor) -> float | None:
        """The rate of the link from a sender, bytes/s; None: unknown."""
        observed = self._seconds_per_byte.get(sender)
        seconds = None if observed is None else observed.quantile(0.5)
        return None if seconds is None else 1 / seconds

    def slowest(self, count: int) -> list[tuple[Actor, float]]:
        """At most `count` senders and the rates of their links in bytes/s, slowest first."""
        return sorted(self._rates(), key=lambda rate: rate[1])[:count]

    def fastest(self, count: int) -> list[tuple[Actor, float]]:
        return sorted(self._rates(), key=lambda rate: -rate[1])[:count]

    def _rates(self) -> list[tuple[Actor, float]]:
        medians = ((sender, observed.quantile(0.5)) for sender, observed in self._seconds_per_byte.items())
        return [(sender, 1 / median) for sender, median in medians if median is not None]
