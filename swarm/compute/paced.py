"""An engine that emulates a slower machine, for experiments with more peers than cores.

All computations, states, sums and digests are real. It sleeps for the rest of each microbatch's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from swarm.compute.engine import StageEngine
from swarm.compute.least_pace import LeastPace, wait
from swarm.manifest import RunManifest
from swarm.protocol.ids import PassKind
from swarm.protocol.peer.io import Backward, BackwardDone, Forward, PeerInput, Weights

_Action = TypeVar("_Action", Forward, Backward, Weights)


class PacedEngine(StageEngine):
    """A `StageEngine` with a minimum time per microbatch. If computing takes longer, it does not sleep."""

    def __init__(self, manifest: RunManifest, stage: int, *options: Any, pace: LeastPace, **further: Any) -> None:
        """`pace`: the minimum times. The others are those of StageEngine."""
        self._pace = pace
        self._last = stage == manifest.model.stages - 1
        super().__init__(manifest, stage, *options, **further)

    def _compute(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        began = time.perf_counter()
        done = super()._compute(run, action)
        split = isinstance(done, BackwardDone) and done.weights_due
        wait(self._seconds(action, split) - (time.perf_counter() - began))
        return done

    def _seconds(self, action: Forward | Backward | Weights, split: bool) -> float:
        """The minimum seconds of an action. `split`: the weight gradients of this backward are computed later."""
        backward_s = self._pace.backward_s / 2 if split or isinstance(action, Weights) else self._pace.backward_s
        if not isinstance(action, Forward):
            return backward_s
        both = self._last and action.kind is PassKind.TRAIN  # the last stage computes the backward at once
        return self._pace.forward_s + (backward_s if both else 0.0)
