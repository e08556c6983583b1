"""The token bucket: how much of something may pass in how much time."""

from __future__ import annotations

_SLACK = 1.0  # tokens: more than the rounding of any clock


class TokenBucket:
    """A full bucket of `burst` tokens, into which `rate` tokens come a second. Times are of one monotonic clock,
    in seconds. In any t seconds at most `rate`·t + `burst` + 1 tokens are taken; those that are charged may be more.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = now

    def take(self, tokens: float, now: float) -> bool:
        """Take this number of tokens, at most a burst, if they are there. Returns True if they were."""
        assert tokens <= self.burst, "more than ever fits"
        self._refill(now)
        if self._level < tokens - _SLACK:
            return False
        self._level -= tokens
        return True

    def charge(self, tokens: float, now: float) -> None:
        """Take tokens that may not be there yet: the bucket is overdrawn."""
        self._refill(now)
        self._level -= tokens

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until so many tokens are there, if there are no other calls of `take` or `charge`."""
        self._refill(now)
        return max(0.0, (tokens - self._level) / self.rate)

    def _refill(self, now: float) -> None:
        self._level = min(self.burst, self._level + self.rate * (now - self._at))
        self._at = now
