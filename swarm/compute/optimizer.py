"""The optimizer of a stage: AdamW with warm-up and cosine, fed with the reduced sum of gradients.

Projectors are retracted after the step, so that they are orthonormal again (swarm/models/retraction.py).

torch's functional AdamW, whose class would import the compiler: 3 CPU-seconds and 70 MB in every peer. `foreach` and
`fused` are off: those kernels may round otherwise than the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from swarm.compute.digest import next_chain, reduced_digest, state_digest
from swarm.compute.sums import Layout
from swarm.manifest import OptimizerSection
from swarm.models.boundary import is_projector
from swarm.models.retraction import retract

KINDS = ("param", "exp_avg", "exp_avg_sq")


class StateError(ValueError):
    """A state that does not fit the stage, or holds what no run could have made."""


@dataclass(frozen=True)
class StageState:
    """Everything a replica must hold to continue: CPU copies that share nothing with a live stage."""

    version: int
    """Steps applied, skipped ones included."""
    updates: int
    """Steps that moved the parameters: what AdamW corrects its bias by."""
    chain: str
    """Chain digest of everything applied, hex."""
    tensors: dict[str, Tensor]
    """"param/<name>", "exp_avg/<name>", "exp_avg_sq/<name>": fp32, by name in parameter order."""
    subspace_id: str = ""
    """The subspace the parameters mean something in (ModelSection.subspace_id)."""

    def digest(self) -> str:
        return state_digest(self.version, self.updates, self.tensors)


class StageOptimizer:
    """Owns the optimizer state of `parameters` and the version they are at."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        layout: Layout,
        section: OptimizerSection,
        steps: int,
        chain: str,
        subspace_id: str = "",
    ) -> None:
        self.version = 0
        self.updates = 0
        self.chain = chain
        self._parameters = dict(parameters)
        self._layout = layout
        self._section = section
        self._steps = steps
        self._subspace_id = subspace_id
        self._decayed = [name for name, p in self._parameters.items() if _decays(name, p)]
        self._others = [name for name, p in self._parameters.items() if not _decays(name, p)]
        self._projectors = [p for name, p in self._parameters.items() if is_projector(name)]
        self._moments = {
            kind: {name: torch.zeros_like(p) for name, p in self._parameters.items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }

    def apply(self, reduced: Tensor, scale: float, rate: float = 1.0) -> None:
        """One step from the reduced sums (layout.length,). Scale 0 skips: only version and chain move.

        `rate`: what the schedule's learning rate is multiplied by in this step. An exception leaves the state void.
        Raises RankError.
        """
        chain = next_chain(self.chain, reduced_digest(reduced), scale, rate)
        if scale != 0.0:
            means = {}
            for (name, parameter), part in zip(self._parameters.items(), self._layout.slices, strict=True):
                mean = (reduced[part].to(torch.float64) * scale).to(torch.float32)
                means[name] = mean.view_as(parameter).to(parameter.device)
            with torch.no_grad():
                self._step(self._decayed, means, self._section.weight_decay, rate)
                self._step(self._others, means, 0.0, rate)
                for projector in self._projectors:
                    projector.copy_(retract(projector))
            self.updates += 1
        self.version += 1
        self.chain = chain

    def _step(self, names: list[str], means: Mapping[str, Tensor], weight_decay: float, rate: float) -> None:
        section = self._section
        adamw(
            [self._parameters[name] for name in names],
            [means[name] for name in names],
            [self._moments["exp_avg"][name] for name in names],
            [self._moments["exp_avg_sq"][name] for name in names],
            [],
            [torch.tensor(float(self.updates)) for _ in names],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=section.beta1,
            beta2=section.beta2,
            lr=rate * learning_rate(section, self.version, self._steps),
            weight_decay=weight_decay,
            eps=section.eps,
            maximize=False,
        )

    def digest(self) -> str:
        """Digest of the full state, equal to `state().digest()` without the copy."""
        return state_digest(self.version, self.updates, self._live())

    def state(self) -> StageState:
        """A consistent copy on the CPU."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._live().items()}
        return StageState(self.version, self.updates, self.chain, tensors, self._subspace_id)

    def load(self, state: StageState) -> None:
        """Take over `state`. Raises StateError and changes nothing unless subspace, names, shapes and values fit."""
        if state.subspace_id != self._subspace_id:
            raise StateError(
                f"state of subspace {state.subspace_id[:16] or 'none'}, this run has {self._subspace_id[:16] or 'none'}"
                ": its numbers mean nothing here; use the model.residual, model.subspace_*, model.boundary* and "
                "model.anchor keys it was trained with"
            )
        live = self._live()
        _check_state(state, live)
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(state.tensors[name])
        self.version, self.updates, self.chain = state.version, state.updates, state.chain

    def _live(self) -> dict[str, Tensor]:
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}
        tables = {"param": parameters, **self._moments}
        return {f"{kind}/{name}": tensor for kind in KINDS for name, tensor in tables[kind].items()}


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and "embed" not in name and not is_projector(name)


def learning_rate(section: OptimizerSection, step: int, steps: int) -> float:
    """Rate of step `step` of `steps`: linear warm-up, then cosine to `min_ratio` of the peak, and that for ever."""
    if step < section.warmup_steps:
        return section.learning_rate * (step + 1) / section.warmup_steps
    progress = min(1.0, (step - section.warmup_steps) / max(1, steps - section.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.learning_rate * (section.min_ratio + (1.0 - section.min_ratio) * cosine)


def _check_state(state: StageState, expected: Mapping[str, Tensor]) -> None:
    if not 0 <= state.updates <= state.version:
        raise StateError(f"state counts {state.updates} updates in {state.version} steps")
    if len(state.chain) != 64 or not set(state.chain) <= set("0123456789abcdef"):
        raise StateError(f"chain digest {state.chain[:80]!r} is not 64 hex digits")
    if missing := expected.keys() - state.tensors.keys():
        raise StateError(f"state lacks {len(missing)} tensors, the first is {min(missing)!r}: is it another stage's?")
    if extra := state.tensors.keys() - expected.keys():
        raise StateError(f"state has {len(extra)} unknown tensors, the first is {min(extra)!r}: is it another stage's?")
    for name, tensor in state.tensors.items():
        want = expected[name]
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise StateError(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {want.dtype} {list(want.shape)}")
        if not tensor.numel():
            continue
        lowest, highest = (bound.item() for bound in torch.aminmax(tensor))  # NaN wins; faster than isfinite()
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            raise StateError(f"{name} holds NaN or infinity")
        if name.startswith("exp_avg_sq/") and lowest < 0:
            raise StateError(f"{name} holds negative second moments")
