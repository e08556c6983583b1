"""The allowance: how many messages this actor reads from one device, and from the devices of one pass together.

Who has more to say waits: nothing more is read from its streams until its allowance has grown again. So nothing is
lost, and the memory is that of one message a stream. Coordinators are not limited. Frames of a step are not either,
unless they are refused: only so many of them are expected, and a peer reads them as fast as they come.
"""

from __future__ import annotations

from swarm.net.token_bucket import TokenBucket

OF_DEVICE = 200.0
"""Points a second. An honest peer needs about ten."""
OF_PASS = 2000.0
"""Points a second."""
SAVED_S = 20.0
"""Seconds of an allowance that may be saved up."""
MESSAGE = 1.0
"""Points of a message on the control channel; one more for each KiB."""
REFUSED = 10.0
"""Points of a frame that is refused."""
OPENED = 10.0
"""Points of a stream that is opened."""
MAX_COUNTED = 4096
"""Devices whose points are counted, and passes. Those that were heard longest ago make room."""


class MessageAllowance:
    """Of one actor, for all others. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._devices = _Buckets(OF_DEVICE)
        self._passes = _Buckets(OF_PASS)

    def use(self, peer: str, serial: bytes, points: float, now: float) -> float:
        """Count points of a device and of its pass. Returns for how many seconds nothing more is to be read from it.

        `serial`: empty for a coordinator, which never waits.
        """
        if not serial:
            return 0.0
        return max(self._devices.use(peer, points, now), self._passes.use(serial, points, now))


class _Buckets:
    """Token buckets that may be overdrawn, by whom they are of."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._of: dict[str | bytes, TokenBucket] = {}
        """Who was heard last is last."""

    def __len__(self) -> int:
        return len(self._of)

    def use(self, whose: str | bytes, points: float, now: float) -> float:
        bucket = self._of.pop(whose, None) or TokenBucket(self._rate, self._rate * SAVED_S, now)
        while len(self._of) >= MAX_COUNTED:
            del self._of[next(iter(self._of))]
        self._of[whose] = bucket
        bucket.charge(points, now)
        return bucket.wait(0.0, now)
