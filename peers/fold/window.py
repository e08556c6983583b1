"""Amounts of work over a sliding window of time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Window:
    """The tokens that were processed and the tokens that could have been, in the last `most` buckets of `width`
    seconds.
    """

    width: float
    most: int
    buckets: list[list[float]] = field(default_factory=list)
    """For each bucket: its number (start ÷ width), processed and possible tokens. Oldest first."""

    def add(self, start: float, end: float, done: float, possible: float) -> None:
        """Add an amount of processed and possible tokens, spread evenly over the time from `start` to `end`."""
        last = int(end // self.width)
        first = max(int(start // self.width), last - self.most)
        length = end - start
        for number in range(first, last + 1):
            inside = min(end, (number + 1) * self.width) - max(start, number * self.width)
            part = inside / length if length > 0 else float(number == last)
            bucket = self._bucket(number)
            if bucket is not None:
                bucket[1] += done * part
                bucket[2] += possible * part

    def until(self, end: float) -> Window:
        """A copy that ends at `end`, without the buckets that are too old then."""
        first = int(end // self.width) - self.most + 1
        return Window(self.width, self.most, [list(bucket) for bucket in self.buckets if bucket[0] >= first])

    def goodput(self) -> float | None:
        """The fraction of the possible tokens that were processed. None: none were possible."""
        done = max(0.0, sum(bucket[1] for bucket in self.buckets))
        possible = sum(bucket[2] for bucket in self.buckets)
        return done / possible if possible > 0 else None

    def _bucket(self, number: int) -> list[float] | None:
        buckets = self.buckets
        if not buckets or number > buckets[-1][0]:
            buckets.append([number, 0.0, 0.0])
            while buckets[0][0] <= number - self.most:
                del buckets[0]
            return buckets[-1]
        for bucket in reversed(buckets):
            if bucket[0] == number:
                return bucket
            if bucket[0] < number:
                break
        return None  # the bucket is before the window, or its amount is too small to matter
