"""The reference: trains the same run in one process, as simply as possible. The swarm's result must equal it.

The whole model is one autograd graph. The boundary codecs are straight-through functions at the cuts. The reference
shares with the swarm only the model, the data, the codecs, and the definitions of sums, digests and the optimizer
step. It has no peers, frames or protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from peers.run.averaged_sums import AveragedSums
from peers.run.replay import ReplayError, StepReplay
from swarm import codecs
from swarm.codecs import ladder
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.block_grid import BlockGrid
from swarm.compute.digest import first_chain, run_digest
from swarm.compute.layout import Layout
from swarm.compute.norm import squared_norm
from swarm.compute.optimizer import StageOptimizer, StageState
from swarm.compute.precision import Precision
from swarm.compute.totals import loss_of, unit_of
from swarm.compute.working_weights import WorkingWeights
from swarm.data.reader import visits
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage
from swarm.models.token_means import sent_means
from swarm.protocol.clipping import step_scale
from swarm.protocol.messages import CodecPair
from swarm.protocol.update import update_of

_PLAIN = Arithmetic("cpu", 1, Precision.FP32, compiled=False)


class TrainingData(Protocol):
    def microbatch(self, step: int, m: int, /) -> np.ndarray:
        """Token ids, int64 (sequences, sequence_length + 1)."""
        ...


class HeldoutData(Protocol):
    def heldout(self, m: int, /) -> np.ndarray:
        """Token ids, int64 (sequences, sequence_length + 1)."""
        ...


@dataclass(frozen=True)
class ReferenceStep:
    step: int
    loss: float
    """Nats per token."""
    loss_sum: float
    gradient_norm: float
    scale: float
    chains: tuple[str, ...]
    """Chain digest of each stage after the step."""


@dataclass(frozen=True)
class ReferenceResult:
    steps: tuple[ReferenceStep, ...]
    states: tuple[StageState, ...]

    @property
    def digests(self) -> tuple[str, ...]:
        """Full-state digest of each stage."""
        return tuple(state.digest() for state in self.states)

    @property
    def digest(self) -> str:
        """Digest of the whole run."""
        return run_digest(self.digests)


def train_reference(
    manifest: RunManifest,
    data: TrainingData,
    *,
    arithmetic: Arithmetic = _PLAIN,
    on_step: Callable[[ReferenceStep], None] | None = None,
    stop_after: int | None = None,
    state: Sequence[StageState] | None = None,
    replay: Mapping[int, StepReplay] | None = None,
) -> ReferenceResult:
    """Train from `state` (default: the initial parameters) to version `stop_after` (default: the run's end).

    The organiser may have moved that end: if `stop_after` is beyond it, the learning rate stays at its minimum. A run
    from imported parameters begins with their `state` (peers/run/first_version.py). `replay`: a swarm's choices in
    each step. Default: the choices of peers that never fail and keep everything, and whose links are never measured.

    `arithmetic`: the results equal those of a swarm whose peers compute in this way, on the same kind of machine. Its
    number of threads is set for the process. Sums, codecs and averages are computed on the CPU, whatever the device.
    Raises StateError, SumOverflow, codecs.CodecError, ReplayError.
    """
    assert state is not None or not manifest.initial.sha256, "version 0 is imported: it has no other initial parameters"
    torch.set_num_threads(arithmetic.threads)
    model = ReferenceModel(manifest, arithmetic)
    if state is not None:
        model.load(state)
    last = manifest.run.steps if stop_after is None else stop_after
    steps = []
    for step in range(model.version, last):
        steps.append(model.train(step, data, (replay or {}).get(step)))
        if on_step is not None:
            on_step(steps[-1])
    return ReferenceResult(tuple(steps), tuple(optimizer.state() for optimizer in model.optimizers))


class ReferenceModel:
    """The whole model of a run with its optimizers, from its initial parameters."""

    def __init__(self, manifest: RunManifest, arithmetic: Arithmetic = _PLAIN) -> None:
        self._manifest = manifest
        self._device = torch.device(arithmetic.device)
        self._precision = arithmetic.precision
        stages = range(manifest.model.stages)
        self._modules = [
            build_stage(manifest.model, stage, device=self._device, seed=manifest.run.seed) for stage in stages
        ]
        self._weights = [WorkingWeights(module, self._precision) for module in self._modules]
        self._sent_means = [sent_means(module, self._precision.gradient_scale) for module in self._modules]
        if arithmetic.compiled:
            for module in self._modules:
                module.compile_layers()
        self._parameters = [weights.masters for weights in self._weights]
        self._layouts = [
            Layout.of(parameters, with_loss=module.last, shared=module.shared)
            for module, parameters in zip(self._modules, self._parameters, strict=True)
        ]
        self._grids = [BlockGrid.of(manifest, *each, "cpu") for each in enumerate(self._layouts)]
        self._sums = [
            AveragedSums(layout, manifest.sums, grid) for layout, grid in zip(self._layouts, self._grids, strict=True)
        ]
        self.optimizers = [
            StageOptimizer(
                parameters,
                layout,
                manifest.optimizer,
                first_chain(manifest, stage),
                manifest.model.subspace_id,
            )
            for stage, parameters, layout in zip(stages, self._parameters, self._layouts, strict=True)
        ]
        self._memory = _Memory(manifest) if manifest.codec.remembers else None
        self._pairs = _pairs(manifest, ())
        self.crossed = Crossed()

    @property
    def version(self) -> int:
        return self.optimizers[0].version

    def load(self, state: Sequence[StageState]) -> None:
        if len(state) != len(self.optimizers) or len({stage.version for stage in state}) != 1:
            raise ValueError(
                f"state has stages at versions {[stage.version for stage in state]}, "
                f"expected {len(self.optimizers)} stages at one version"
            )
        for optimizer, stage, weights in zip(self.optimizers, state, self._weights, strict=True):
            optimizer.load(stage)
            weights.refresh()

    def train(self, step: int, data: TrainingData, replay: StepReplay | None = None) -> ReferenceStep:
        if self._memory is not None:
            self._memory.begin(step, replay)
        for grid, optimizer in zip(self._grids, self.optimizers, strict=True):
            if grid is not None:
                grid.follow(optimizer.second_moments, optimizer.version)
        recorded = replay.contributions if replay is not None else ()
        for sums, contributions in zip(self._sums, recorded or ((),) * len(self._sums), strict=True):
            sums.begin(step, contributions)
        self._pairs = _pairs(self._manifest, () if replay is None else replay.codecs)
        for m in range(self._manifest.batch.microbatches):
            self._accumulate(m, torch.from_numpy(data.microbatch(step, m)))
        reduced = [sums.reduced(self._partner(stage)) for stage, sums in enumerate(self._sums)]
        units = [unit_of(flat.dtype, self._manifest.sums) for flat in reduced]
        norms = [squared_norm(*each) for each in zip(reduced, self._layouts, units, strict=True)]
        targets = self._manifest.targets_per_step
        scale, norm = step_scale(norms, targets, self._manifest.optimizer.clip_norm)
        update = replay.update if replay is not None else None
        update = update or update_of(self._manifest.optimizer, step, self._manifest.run.steps)
        for optimizer, flat, unit, weights in zip(self.optimizers, reduced, units, self._weights, strict=True):
            optimizer.apply(flat, scale, update, unit=unit)
            weights.refresh()
        if self._memory is not None and scale == 0.0:
            self._memory.forget(step)
        total = loss_of(reduced[-1], self._manifest.sums)
        chains = tuple(optimizer.chain for optimizer in self.optimizers)
        return ReferenceStep(step, total / targets, total, norm, scale, chains)

    def heldout_loss(self, data: HeldoutData, *, coded: bool = True) -> float:
        """Nats per token over the evaluation's held-out microbatches. `coded` False: without the codecs.

        If codecs are chosen during the run, an evaluation uses those of the previous step.
        """
        count = self._manifest.evaluation.microbatches
        with torch.no_grad():
            batches = (torch.from_numpy(data.heldout(m)) for m in range(count))
            total = sum(self._loss_sum(batch, coded).item() for batch in batches)
        return total / (count * self._manifest.targets_per_microbatch)

    def parameters(self) -> Iterator[Tensor]:
        for parameters in self._parameters:
            yield from parameters.values()

    def _accumulate(self, m: int, tokens: Tensor) -> None:
        """Add the gradient of one microbatch (sequences, sequence_length + 1) to every stage's sums."""
        scale = self._precision.gradient_scale
        loss = self._loss_sum(tokens, microbatch=m)
        leaves = [leaf for weights in self._weights for leaf in weights.leaves.values()]
        gradients = iter(torch.autograd.grad(loss if scale == 1.0 else scale * loss, leaves))
        for sums, parameters in zip(self._sums, self._parameters, strict=True):
            found = [next(gradients) for _ in parameters]
            mine = [(each if scale == 1.0 else each.float() / scale).cpu() for each in found]
            sums.add(m, mine, loss.item() if sums.layout.with_loss else None)

    def _partner(self, stage: int) -> AveragedSums | None:
        """The sums of the other stage that holds the same parameters, if the first and the last stage share some."""
        ends = {0: -1, len(self._sums) - 1: 0}
        return self._sums[ends[stage]] if self._layouts[0].shared_length and stage in ends else None

    def _loss_sum(self, tokens: Tensor, coded: bool = True, microbatch: int | None = None) -> Tensor:
        inputs, labels = (each.contiguous().to(self._device) for each in (tokens[:, :-1], tokens[:, 1:]))
        last = self._modules[-1]
        with self._precision.autocast(self._device):
            entered = self._entered(inputs, coded, microbatch)
            if microbatch is None:
                return last.loss_sum(last(entered, inputs), labels)
            return last.train_loss(entered, inputs, labels)

    def _entered(self, tokens: Tensor, coded: bool, microbatch: int | None) -> Tensor:
        """The input of the last stage. `microbatch`: its number in the training step that has begun."""
        x = tokens
        for boundary, module in enumerate(self._modules[:-1], 1):
            x = module(x, tokens)
            if not coded:
                continue
            forward, backward = self._pairs[boundary - 1]
            if self._memory is None or microbatch is None:
                x = _cross(x, forward, backward, self.crossed, self._precision.gradient_scale)
                if (means := self._sent_means[boundary - 1]) is not None:
                    means.crossed = x.detach()
            else:
                base = self._memory.base(boundary, microbatch)
                codec = self._memory.codec if base is None else self._memory.codec.against(base)
                hidden, x = x, _cross(x, codec, backward, self.crossed, self._precision.gradient_scale)
                left = self._memory.codec.left(base, hidden.detach().cpu(), x.detach().cpu())
                self._memory.keep(boundary, microbatch, left)
        return x


def _pairs(manifest: RunManifest, chosen: Sequence[CodecPair]) -> list[tuple[codecs.Codec, codecs.Codec]]:
    """The codecs by boundary. Without a choice: those at the start of a run."""
    if manifest.codec.auto and chosen:
        return [codecs.pair(pair.forward, pair.backward) for pair in chosen]
    return [codecs.pair(*ladder.start(manifest))] * (manifest.model.stages - 1)


class _Memory:
    """The reconstructions of each boundary's codec from the last visit of each microbatch, as bases for the next."""

    def __init__(self, manifest: RunManifest) -> None:
        codec, order = codecs.get(manifest.codec.forward), visits(manifest)
        assert isinstance(codec, codecs.Remembering) and order is not None
        self.codec = codec
        self._order = order
        self._step = 0
        self._replay: StepReplay | None = None
        self._kept: dict[tuple[int, int, int], Tensor] = {}
        """{(step of the visit, boundary, microbatch): fp16}"""

    def begin(self, step: int, replay: StepReplay | None) -> None:
        self._step = step
        self._replay = replay

    def base(self, boundary: int, m: int) -> Tensor | None:
        """The base of an activation in the step that has begun; None: a key frame. Raises ReplayError."""
        visit = self._order.previous(self._step)
        base = self._kept.pop((visit, boundary, m), None) if visit is not None else None
        if self._replay is None:
            return base
        if self._replay.key_frames[boundary - 1] >> m & 1:
            return None
        if base is None:
            raise ReplayError(
                f"microbatch {m} of step {self._step} at boundary {boundary} is relative to step {visit}, "
                "which is not known here: train from version 0"
            )
        return base

    def keep(self, boundary: int, m: int, left: Tensor) -> None:
        self._kept[self._step, boundary, m] = left

    def forget(self, step: int) -> None:
        """Forget the bases of a skipped step, so that later steps do not build on them."""
        self._kept = {key: left for key, left in self._kept.items() if key[0] != step}


@dataclass(slots=True)
class Crossed:
    """The number of encoded frames that crossed the cuts, including evaluations, and their bytes without headers."""

    activations: int = 0
    activation_bytes: int = 0
    gradients: int = 0
    gradient_bytes: int = 0


class _Boundary(torch.autograd.Function):
    """The effect of a cut on an activation and, in the backward, on its gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, forward: codecs.Codec, backward: codecs.Codec, tally: Crossed, scale: float
    ) -> Tensor:
        frame, crossed = _crossed(forward, hidden)
        tally.activations += 1
        tally.activation_bytes += len(frame)
        ctx.codec, ctx.tally, ctx.scale = backward.beside(frame), tally, scale
        return crossed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        frame, crossed = _crossed(ctx.codec, gradient / ctx.scale)
        ctx.tally.gradients += 1
        ctx.tally.gradient_bytes += len(frame)
        return crossed * ctx.scale, None, None, None, None


_cross: Callable[[Tensor, codecs.Codec, codecs.Codec, Crossed, float], Tensor] = _Boundary.apply


def _crossed(codec: codecs.Codec, tensor: Tensor) -> tuple[bytes, Tensor]:
    """The frame and its reconstruction. If a number is not finite, the whole reconstruction is NaN, and the step is
    skipped.
    """
    try:
        frame = codec.encode(tensor.cpu())
    except codecs.CodecError as error:
        if error.reason is not codecs.Reason.NOT_FINITE:
            raise
        return b"", torch.full_like(tensor, math.nan)
    return frame, codec.decode(frame, tensor.shape).to(tensor.device)
