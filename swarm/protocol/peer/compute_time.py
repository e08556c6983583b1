"""Measures how fast this peer computes. The coordinator derives the peer's share and its deadlines from it."""

from __future__ import annotations

from swarm.protocol.ids import Microbatch, PassId
from swarm.protocol.peer.io import BackwardDone, ComputeFailed, ForwardDone, ResultDone, WeightsDone

SUDDENLY = 2.0
"""If a pass takes at least this multiple of the average, its time replaces the average, which would otherwise lag
behind.
"""


class ComputeTime:
    """Seconds per microbatch, forward and backward, in the current pass. Before the first measurement in a pass, the
    moving average over passes.

    Work that became void counts too, so that a peer that was fenced because it became slow reports its new speed.
    """

    def __init__(self) -> None:
        self._forward, self._backward = _Seconds(), _Seconds()
        self._halves: dict[Microbatch, float] = {}
        """Seconds of backwards whose weight gradients are still due. They count when the weight gradients are done."""
        self._stage: int | None = None

    def measure(self, event: ForwardDone | BackwardDone | WeightsDone | ResultDone | ComputeFailed) -> None:
        """Record how long a computation took, even if its result is void. Passes without gradients do not count."""
        match event:
            case ForwardDone(PassId(index=0), seconds=seconds):
                self.forward(seconds)
            case BackwardDone(weights_due=True, microbatch=m, seconds=seconds):
                self.half_backward(m, seconds)
            case BackwardDone(seconds=seconds):
                self.backward(seconds)
            case WeightsDone(microbatch=m, seconds=seconds):
                self.other_half(m, seconds)
            case _:
                pass

    def forward(self, seconds: float) -> None:
        self._forward.add(seconds)

    def backward(self, seconds: float) -> None:
        """Count a whole backward. In the last stage this includes the forward, which is computed together with it."""
        self._backward.add(seconds)

    def half_backward(self, m: Microbatch, seconds: float) -> None:
        """Record the backward of `m` without the weight gradients."""
        self._halves[m] = seconds

    def other_half(self, m: Microbatch, seconds: float) -> None:
        """Count the weight gradients of `m`, together with its backward."""
        self.backward(self._halves.pop(m, 0.0) + seconds)

    def new_pass(self, stage: int) -> None:
        """Start a pass. Times measured in another stage are dropped, because they do not hold for this one."""
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
    """Measured seconds of one kind of work."""

    def __init__(self) -> None:
        self._average: float | None = None
        self._busy_s = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        self._busy_s += seconds
        self._count += 1

    def fold(self) -> None:
        """End a pass: include its measurements in the average."""
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
