"""What the links to this process carry, read off the frames that come in.

A receiver alone can tell: between a sender and the link lie buffers of megabytes, which take a frame at any rate. How
long a payload takes from its header to its last byte is the time of the link, once the payload is larger than what
arrives in one go: what is read from a link comes in encrypted messages of at most 64 KiB, each delivered whole.
Small frames therefore say nothing, and nothing has to be known of them: they are soon over.

A frame that shares the link with others seems slow, and one that was waiting while this process was busy seems fast.
The median of the last ones is taken.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor
from swarm.protocol.timeouts import Observed

AT_ONCE = 64 << 10
"""Bytes of a payload that may be there with its header: they are not counted."""
LEAST = 2 * AT_ONCE
"""A payload of fewer bytes says nothing."""
FASTEST = 1e12
"""Bytes a second: more is not told."""
MOST_SENDERS = 256


class LinkRates:
    """By sender, over the last frames (deadlines.WINDOW). Of more than MOST_SENDERS the first known is forgotten."""

    def __init__(self) -> None:
        self._seconds_per_byte: dict[Actor, Observed] = {}

    def arrived(self, sender: Actor, nbytes: int, seconds: float) -> None:
        """A payload has come in. `seconds`: from when its header was there."""
        if nbytes < LEAST:
            return
        observed = self._seconds_per_byte.setdefault(sender, Observed())
        observed.add(max(seconds / (nbytes - AT_ONCE), 1 / FASTEST))
        if len(self._seconds_per_byte) > MOST_SENDERS:
            del self._seconds_per_byte[next(iter(self._seconds_per_byte))]

    def of(self, sender: Actor) -> float | None:
        """Bytes a second; None: not known."""
        observed = self._seconds_per_byte.get(sender)
        seconds = None if observed is None else observed.quantile(0.5)
        return None if seconds is None else 1 / seconds

    def slowest(self, count: int) -> list[tuple[Actor, float]]:
        """At most `count` senders with the bytes a second of their links, the slowest first."""
        return sorted(self._rates(), key=lambda rate: rate[1])[:count]

    def fastest(self, count: int) -> list[tuple[Actor, float]]:
        return sorted(self._rates(), key=lambda rate: -rate[1])[:count]

    def _rates(self) -> list[tuple[Actor, float]]:
        medians = ((sender, observed.quantile(0.5)) for sender, observed in self._seconds_per_byte.items())
        return [(sender, 1 / median) for sender, median in medians if median is not None]
