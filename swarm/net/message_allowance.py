"""Rate limits on the messages that this actor reads from one device, and from all devices of one pass.

When a sender has used up its allowance, its streams are not read until the allowance has grown again. So no message is
lost, and the memory use is one message per stream. Coordinators are not limited. Frames of a step are not limited
either while they are of use: their number is known, and a peer must read them as fast as they come. This does not
hold for frames that are refused, that are of no use (repetitions, frames of other passes), or that their origin sends
through this actor: anybody may send any number of those.
"""

from __future__ import annotations

from swarm.net.token_bucket import TokenBucket

OF_DEVICE = 200.0
"""Allowance of one device, points per second. An honest peer needs about ten."""
OF_PASS = 2000.0
"""Allowance of all devices of one pass together, points per second."""
SAVED_S = 20.0
"""Seconds of an allowance that may be saved up."""
MESSAGE = 1.0
"""Points that a message on the control channel costs, plus one for each KiB, plus one for each PARTS."""
PARTS = 32
"""Number of nested values, such as keys, that take about as long to decode as a short message. The smallest ones take
two bytes, so the size of a message does not tell how long it takes.
"""
REFUSED = 10.0
"""Points that a refused frame costs, plus one for each USELESS_BYTES."""
USELESS_BYTES = 65536
"""A frame that is of no use costs MESSAGE, plus one point for each of these bytes: it had to be read and checked."""
SECOND = 5000.0
"""Points that a second of this process's CPU time costs, whatever the message: few bytes can take long to check."""
OPENED = 10.0
"""Points that opening a stream costs."""
RESTARTED = 1000.0
"""Points that a device pays, and not its pass, when it comes back as another process: each process is introduced,
described and reported as lost in the event logs. So one device can do this once every five seconds in the long run.
"""
MAX_COUNTED = 4096
"""Largest number of counted devices, and of counted passes; the least recently active one is forgotten first."""


def cost_of(header_bytes: int, parts: int) -> float:
    """Points that a message on the control channel costs. `parts`: number of nested values in it."""
    return MESSAGE + header_bytes / 1024 + parts / PARTS


def cost_of_refused(nbytes: int) -> float:
    """Points that a refused frame costs. `nbytes`: of its payload."""
    return REFUSED + nbytes / USELESS_BYTES


def cost_of_useless(nbytes: int) -> float:
    """Points that a frame costs that can be used, but is of no use here. `nbytes`: of its payload."""
    return MESSAGE + nbytes / USELESS_BYTES


def cost_of_time(cpu_s: float) -> float:
    """Points that decoding and checking a message costs in addition."""
    return cpu_s * SECOND


class MessageAllowance:
    """The limits that one actor applies to all others. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._devices = _Buckets(OF_DEVICE)
        self._passes = _Buckets(OF_PASS)

    def use(self, peer: str, serial: bytes, points: float, now: float) -> float:
        """Charge points to a device and to its pass. Returns the seconds for which its streams must not be read.

        `serial`: of its pass; empty for a coordinator, which is not limited.
        """
        if not serial:
            return 0.0
        return max(self._devices.use(peer, points, now), self._passes.use(serial, points, now))

    def restart(self, peer: str, serial: bytes, now: float) -> float:
        """Charge a device for coming back as another process. Returns the same as `use`."""
        return self._devices.use(peer, RESTARTED, now) if serial else 0.0


class _Buckets:
    """Token buckets, one for each device or pass. A bucket may be overdrawn."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._of: dict[str | bytes, TokenBucket] = {}
        """The bucket of each peer id or serial, in order of use: the most recently used bucket is last."""

    def __len__(self) -> int:
        return len(self._of)

    def use(self, whose: str | bytes, points: float, now: float) -> float:
        bucket = self._of.pop(whose, None) or TokenBucket(self._rate, self._rate * SAVED_S, now)
        while len(self._of) >= MAX_COUNTED:
            del self._of[next(iter(self._of))]
        self._of[whose] = bucket
        bucket.charge(points, now)
        return bucket.wait(0.0, now)
