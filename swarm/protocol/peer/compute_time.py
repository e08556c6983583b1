"""How fast this peer computes: what the coordinator weighs it by, and how long it lets it be at work on one thing."""

from __future__ import annotations

from swarm.protocol.ids import Microbatch

SUDDENLY = 2.0
"""What takes so many times as long as before takes as long as that from now on: an average would lag behind."""


class ComputeTime:
    """Seconds per microbatch, forward and backward: of the pass so far, else the moving average over passes.

    Also of what was void when it was done: who became so slow that it was fenced has to say so.
    """

    def __init__(self) -> None:
        self._forward, self._backward = _Seconds(), _Seconds()
        self._halves: dict[Microbatch, float] = {}
        """Seconds of backwards whose weights' gradients are due: they count when those are done."""
        self._stage: int | None = None

    def forward(self, seconds: float) -> None:
        self._forward.add(seconds)

    def backward(self, seconds: float) -> None:
        """In the last stage with the forward: there it is done at once."""
        self._backward.add(seconds)

    def half_backward(self, m: Microbatch, seconds: float) -> None:
        """The backward of `m` without the weights' gradients."""
        self._halves[m] = seconds

    def other_half(self, m: Microbatch, seconds: float) -> None:
        """The weights' gradients of `m`."""
        self.backward(self._halves.pop(m, 0.0) + seconds)

    def new_pass(self, stage: int) -> None:
        """What was measured in another stage says nothing of this one."""
        if stage != self._stage:
            self._forward, self._backward = _Seconds(), _Seconds()
        self._stage = stage
        self._halves.clear()
        self._forward.fold()
        self._backward.fold()

    @property
    def seconds_per_microbatch(self) -> float | None:
        backward = self._backward.usual
        return None if backward is None else backward + (self._forward.usual or 0.0)


class _Seconds:
    """Of one kind of work."""

    def __init__(self) -> None:
        self._average: float | None = None
        self._busy_s = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        self._busy_s += seconds
        self._count += 1

    def fold(self) -> None:
        """A pass is over."""
        if self._count:
            measured = self._busy_s / self._count
            if self._average is None or measured > SUDDENLY * self._average:
                self._average = measured
            else:
                self._average = 0.5 * (self._average + measured)
        self._busy_s, self._count = 0.0, 0

    @property
    def usual(self) -> float | None:
        return self._busy_s / self._count if self._count > 1 else self._average
