"""An engine that computes no faster than a slower machine would: for rehearsals with more peers than there are cores.

What is computed is real, and so are states, sums and digests; what is left of a microbatch's time is slept.
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
    """`StageEngine` at a pace. Where it computes slower than that it waits for nothing."""

    def __init__(self, manifest: RunManifest, stage: int, *, pace: LeastPace, **options: Any) -> None:
        """`options`: those of StageEngine."""
        self._pace = pace
        self._last = stage == manifest.model.stages - 1
        super().__init__(manifest, stage, **options)

    def _compute(self, run: Callable[[_Action], PeerInput], action: _Action) -> PeerInput:
        began = time.perf_counter()
        done = super()._compute(run, action)
        split = isinstance(done, BackwardDone) and done.weights_due
        wait(self._seconds(action, split) - (time.perf_counter() - began))
        return done

    def _seconds(self, action: Forward | Backward | Weights, split: bool) -> float:
        """`split`: half of the backward is yet to be done."""
        backward_s = self._pace.backward_s / 2 if split or isinstance(action, Weights) else self._pace.backward_s
        if not isinstance(action, Forward):
            return backward_s
        both = self._last and action.kind is PassKind.TRAIN  # the last stage goes back at once
        return self._pace.forward_s + (backward_s if both else 0.0)
