"""A token bucket: it limits an average rate, and allows short bursts."""

from __future__ import annotations

_SLACK = 1.0  # tokens: more than the rounding of any clock


class TokenBucket:
    """A bucket that holds at most `burst` tokens, is full at first, and gains `rate` tokens per second.

    Times are seconds of one monotonic clock. In any t seconds, `take` takes at most `rate`·t + `burst` + 1 tokens;
    `charge` may take more.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = now

    def take(self, tokens: float, now: float) -> bool:
        """Take tokens if the bucket contains enough of them; returns whether it did. `tokens`: at most `burst`."""
        assert tokens <= self.burst, "more tokens than the bucket can hold"
        self._refill(now)
        if self._level < tokens - _SLACK:
            return False
        self._level -= tokens
        return True

    def charge(self, tokens: float, now: float) -> None:
        """Take tokens even if the bucket does not contain enough of them: it is then overdrawn."""
        self._refill(now)
        self._level -= tokens

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until the bucket contains `tokens`, if there are no calls of `take` or `charge` before."""
        self._refill(now)
        return max(0.0, (tokens - self._level) / self.rate)

    def _refill(self, now: float) -> None:
        self._level = min(self.burst, self._level + self.rate * (now - self._at))
        self._at = now
