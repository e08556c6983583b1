"""An engine whose compute is a calibrated sleep, with real actions, real threads, real frame sizes and real bytes.

It serves to measure everything but the arithmetic, with more peers than there are cores. Adding gradients up is part of
the arithmetic: the first microbatch of a pass adds what the replica's microbatches would add up to, a random vector
that grows with the root of their number, and the others add nothing. Reduce and optimizer step are real.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from swarm.buffer import Buffer
from swarm.compute.body import BodyKind, ForwardBody
from swarm.compute.engine import StageEngine
from swarm.compute.layout import Layout
from swarm.compute.least_pace import wait
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.manifest import RunManifest
from swarm.models.stage_module import StageModule
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.messages import CodecPair
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Discard,
    Forward,
    ForwardDone,
    PeerInput,
    ResultDone,
    Weights,
    WeightsDone,
)

GRADIENT = 1.0
"""Root mean square of the gradient of a microbatch."""
_OPTIONS = StageOptions(graph_budget_bytes=0)


class EmulatedEngine(StageEngine):
    """A `StageEngine` whose forward and backward of a microbatch take the given seconds.

    `parameters`: length of the gradient that is reduced, and of the optimizer step, which is real. `splits`: for a
    step, whether half of each backward is postponed.
    """

    def __init__(
        self,
        manifest: RunManifest,
        stage: int,
        *,
        post: Callable[[PeerInput], None],
        forward_s: float,
        backward_s: float,
        parameters: int = 1 << 16,
        splits: Callable[[int], bool] = lambda step: False,
    ) -> None:
        self._splits_in = splits
        self._parameters = parameters
        self._seconds = (forward_s, backward_s)
        super().__init__(manifest, stage, _OPTIONS, post=post)

    def _layout(self) -> Layout:
        module = _Weights(self._parameters, last=self._index == self._manifest.model.stages - 1)
        return Layout.of(dict(module.named_parameters()), with_loss=module.last)

    def _build(self, initialised: bool) -> Stage:
        return _EmulatedStage(self._manifest, self._index, self._parameters, *self._seconds, self._splits_in)


class _EmulatedStage(Stage):
    def __init__(
        self,
        manifest: RunManifest,
        index: int,
        parameters: int,
        forward_s: float,
        backward_s: float,
        splits: Callable[[int], bool],
    ) -> None:
        self._count = parameters
        self._splits = splits
        self._halves: set[Microbatch] = set()
        """Microbatches of which half of the backward is still to be computed."""
        self._forward_s = forward_s
        self._backward_s = backward_s
        super().__init__(manifest, index, _OPTIONS, initialised=True)
        batch = manifest.batch
        shape = (batch.sequences, batch.sequence_length, manifest.model.widest_boundary)
        self._hidden = torch.randn(shape, generator=torch.Generator().manual_seed(0))  # the same at every stage
        self._tokens = torch.zeros(batch.sequences, batch.sequence_length + 1, dtype=torch.int64)
        self._widths = manifest.model.boundary_widths
        self._auto = manifest.codec.auto
        self._coded_for: Sequence[CodecPair] | None = None
        """The codec with which the prepared bodies were encoded. None before there are any."""
        share = batch.microbatches / manifest.swarm.replicas
        noise = torch.randn(parameters, generator=torch.Generator().manual_seed(index))
        self._of_weights = GRADIENT * math.sqrt(share) * noise
        self._added_up = False
        """Whether the sums of the pass hold this vector."""

    def begin(self, chosen: Sequence[CodecPair] = (), nonfinite: bool = False) -> None:
        super().begin(chosen, nonfinite)
        self._halves.clear()
        self._added_up = False
        if chosen == self._coded_for or (self._auto and not chosen):
            return
        self._coded_for = chosen
        index = self._index
        self._encoded = b""
        if not self._module.last:
            self._encoded = self._format.codecs_at(index + 1)[0].encode(self._crossing(index + 1))
        self._body = self._format.pack_encoded(BodyKind.BATCH, self._tokens, self._encoded)
        self._gradient = None
        if index:
            received = self._format.pack_forward(index, BodyKind.BATCH, self._tokens, self._crossing(index))
            self._gradient = self._format.pack_backward(index, self._crossing(index), received)

    def _crossing(self, boundary: int) -> torch.Tensor:
        return self._hidden[..., : self._widths[boundary - 1]].contiguous()

    def discard(self, action: Discard) -> None:
        super().discard(action)
        self._halves.discard(action.microbatch)

    def forward(self, action: Forward) -> ForwardDone | BackwardDone | ResultDone:
        began = time.perf_counter()
        body = self._format.unpack_forward(self._index, action.payload, action.kind)  # type: ignore[arg-type]
        train = action.kind is PassKind.TRAIN
        if train and self._module.last:
            return self._back(action, began, self._forward_s)
        _last_until(began, self._forward_s)
        if not self._module.last:
            return ForwardDone(action.pass_id, action.microbatch, self._activation(body))
        return ResultDone(action.pass_id, action.microbatch, 1.0, 0 if action.kind is PassKind.GENERATE else -1)

    def backward(self, action: Backward) -> BackwardDone:
        began = time.perf_counter()
        self._format.unpack_backward(self._index + 1, action.payload, self._body)  # type: ignore[arg-type]
        return self._back(action, began, 0.0)

    def weights(self, action: Weights) -> WeightsDone:
        began = time.perf_counter()
        if action.microbatch not in self._halves:
            raise LookupError(f"no half of microbatch {action.microbatch} is due")
        self._halves.remove(action.microbatch)
        self._accumulate_emulated(action)
        _last_until(began, self._backward_s / 2)
        return WeightsDone(action.pass_id, action.microbatch)

    def _build(self, manifest: RunManifest, seed: int | None) -> StageModule:
        # it computes nothing: what is asked of a stage's module here is which parameters it has
        return cast(StageModule, _Weights(self._count, last=self._index == manifest.model.stages - 1))

    def _activation(self, body: ForwardBody) -> Buffer:
        if body.kind is BodyKind.PROMPT:
            return self._frame(body, torch.zeros(*body.inputs.shape, self._widths[self._index]))()
        return self._format.pack_encoded(body.kind, body.tokens, self._encoded)

    def _back(self, action: Forward | Backward, began: float, before_s: float) -> BackwardDone:
        """Compute a backward. `before_s`: seconds of the forward that is computed together with it."""
        splits = self._splits(action.pass_id.step)
        if splits:
            self._halves.add(action.microbatch)
        else:
            self._accumulate_emulated(action)
        _last_until(began, before_s + (self._backward_s / 2 if splits else self._backward_s))
        return BackwardDone(action.pass_id, action.microbatch, self._gradient, weights_due=splits)

    def _accumulate_emulated(self, action: Forward | Backward | Weights) -> None:
        loss, step = 1.0 if self._module.last else None, action.pass_id.step
        if not self._added_up:
            self._added_up = True
            self._accumulator.add([self._of_weights], loss, step=step, microbatch=action.microbatch)
        elif loss is not None:
            self._accumulator.add_loss(loss, step=step)


def _last_until(began: float, seconds: float) -> None:
    """Sleep until this many seconds have passed since `began` (perf_counter)."""
    wait(seconds - (time.perf_counter() - began))


class _Weights(nn.Module):
    """Takes the place of a stage's parameters."""

    def matrices(self) -> list[str]:
        return []

    def __init__(self, count: int, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.shared = 0
        self.weight = nn.Parameter(torch.zeros(count))
