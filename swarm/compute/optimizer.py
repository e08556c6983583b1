"""The optimizer of a stage: AdamW or Muon with warm-up and cosine decay, applied to the reduced sums of gradients.

After each step, projectors are made orthonormal again (swarm/models/retraction.py). Token means follow what crossed
their boundary instead (swarm/models/token_means.py). On every machine, the same sums and
the same state give the same bits (swarm/compute/adamw.py, muon.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.compute import muon
from swarm.compute.adamw import Factors, step
from swarm.compute.checksum import checksum
from swarm.compute.digest import next_chain, reduced_digest, state_digest
from swarm.compute.finite import all_finite, magnitude
from swarm.compute.held import HeldState, Holds
from swarm.compute.layout import Layout
from swarm.compute.offload import host_zeros, pieces, wait_for
from swarm.manifest import OptimizerSection
from swarm.models.boundary import is_projector
from swarm.models.retraction import retract
from swarm.models.token_means import follow, is_token_means
from swarm.protocol.update import Update

KINDS = ("param", "exp_avg", "exp_avg_sq")


MOST_USABLE = 2.0**42
"""Largest usable magnitude of a parameter. The product of three larger numbers, as in a gated layer, exceeds fp32."""


class Condition(NamedTuple):
    """The condition of parameters and moments."""

    spoilt: bool
    """Some values are not finite, so training cannot continue from this state."""
    unusable: bool
    """Some values are not finite, or some parameters are so large that results are not finite."""


class OptimizerError(ValueError):
    """A state does not fit the stage, or contains values that no run can produce."""


@dataclass(frozen=True)
class StageState:
    """Everything that a replica needs to continue. The tensors are on the CPU and share no memory with a live stage;
    they are in memory or in a file that is read tensor by tensor.
    """

    version: int
    """Number of applied steps, with skipped ones."""
    updates: int
    """Number of steps that changed the parameters."""
    chain: str
    """Chain digest of all applied steps, hex."""
    tensors: Mapping[str, Tensor]
    """"param/<name>", "exp_avg/<name>", "exp_avg_sq/<name>": fp32, by name in parameter order."""
    subspace_id: str = ""
    """The subspace for which the parameters were trained (ModelSection.subspace_id)."""

    def digest(self) -> str:
        return state_digest(self.version, self.updates, self.tensors)

    @property
    def spoilt(self) -> bool:
        """Whether some values are not finite."""
        return not all_finite(self.tensors.values())


class StageOptimizer:
    """Owns the optimizer state of `parameters` and their version."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        layout: Layout,
        section: OptimizerSection,
        chain: str,
        subspace_id: str = "",
        elsewhere: torch.device | None = None,
    ) -> None:
        """`elsewhere`: copy the state piece by piece to this device and compute the steps there: to the CPU if the
        device of the state rounds differently (see swarm/compute/self_test.py), or to an accelerator if the state is in
        the host's memory (see swarm/compute/offload.py). None: compute where the state is.
        """
        self.version = 0
        self.updates = 0
        self.chain = chain
        self._parameters = dict(parameters)
        self._layout = layout
        self._section = section
        self._subspace_id = subspace_id
        self._elsewhere = elsewhere
        self.torn = False
        """Whether loading a state failed in the middle, so that the state belongs to no version."""
        self._moments = {kind: self._zeros() for kind in ("exp_avg", "exp_avg_sq")}

    def apply(
        self, reduced: Tensor, scale: float, update: Update, *, unit: float = 1.0, digest: str | None = None
    ) -> None:
        """Apply one step.

        reduced: (layout.length,) in units of `unit`, a power of two; `digest`: of `reduced`, if known. Scale 0 skips
        the step: only version and chain change. After an exception, the state is invalid. Raises RankError.
        """
        chain = next_chain(self.chain, digest or reduced_digest(reduced), scale, update)
        if scale != 0.0:
            rules = _Rules(self._section, update)
            try:
                for (name, parameter), part in zip(self._parameters.items(), self._layout.slices, strict=True):
                    self._step(name, parameter.detach(), reduced[part], rules, scale, unit)
            finally:
                if self._elsewhere is not None:
                    wait_for(self._elsewhere)
            self.updates += 1
        self.version += 1
        self.chain = chain

    @property
    def second_moments(self) -> list[Tensor]:
        """The second moment of each parameter, in parameter order."""
        return list(self._moments["exp_avg_sq"].values())

    def _step(self, name: str, parameter: Tensor, reduced: Tensor, rules: _Rules, scale: float, unit: float) -> None:
        """Update a parameter and its moments. reduced: its part of the reduced vector."""
        means, is_muons = is_token_means(name), rules.is_muons(name, parameter)
        tensors = (parameter, *(() if means else (self._moments[kind][name] for kind in KINDS[1:])))
        whole = self._elsewhere is None or means or is_muons or is_projector(name)
        for part in (slice(0, len(reduced)),) if whole else pieces(len(reduced)):
            state = [tensor.view(-1)[part] for tensor in tensors]
            there = [self._there(piece) for piece in state]
            given = self._moved(reduced[part])
            if means:
                exact = given.to(there[0].device, torch.float64, copy=True).mul_(unit)
                follow(there[0].view(parameter.shape), exact.to(torch.float32).view(parameter.shape))
            elif is_muons:
                rules.muon(there, given, scale * unit, parameter.shape)
            else:
                step(there[0], given, there[1], there[2], rules.adamw(name, parameter), scale * unit)
            if is_projector(name):
                matrix = there[0].view(parameter.shape)
                matrix.copy_(retract(matrix))
            for piece, computed in zip(state, there, strict=True):
                if computed is not piece:
                    piece.copy_(computed, non_blocking=True)

    def _there(self, tensor: Tensor) -> Tensor:
        """The tensor where steps are computed: itself or a copy."""
        there = self._moved(tensor)
        is_copy = self._elsewhere is None or there is not tensor
        return there if is_copy else tensor.clone()  # in tests, one device stands for two

    def _moved(self, tensor: Tensor) -> Tensor:
        """The tensor on the device where steps are computed. An accelerator may copy it later."""
        if self._elsewhere is None:
            return tensor
        return tensor.to(self._elsewhere, non_blocking=self._elsewhere.type != "cpu")

    def _zeros(self) -> dict[str, Tensor]:
        if self._elsewhere is None or self._elsewhere.type == "cpu":
            return {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}
        return host_zeros(self._parameters, self._elsewhere)

    def digest(self) -> str:
        """The digest of the full state: equal to `state().digest()`, but without a copy."""
        return state_digest(self.version, self.updates, self._live())

    def checksum(self, key: int = 0) -> int:
        """A fast checksum of the present parameters and moments, equal on all replicas."""
        return checksum(self._visited(self._live().values()), key)

    def condition(self) -> Condition:
        """The condition of the parameters and moments. Reads each tensor once."""
        moments = (tensor for tensors in self._moments.values() for tensor in tensors.values())
        largest = magnitude(self._visited(parameter.detach() for parameter in self._parameters.values()))
        spoilt = not (math.isfinite(largest) and all_finite(self._visited(moments)))
        return Condition(spoilt, spoilt or largest >= MOST_USABLE)

    def state(self) -> StageState:
        """A consistent copy on the CPU."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._live().items()}
        return StageState(self.version, self.updates, self.chain, tensors, self._subspace_id)

    def hold(self, holds: Holds) -> HeldState:
        """This version for a copying thread, without a copy. It must not be changed before `holds.settle()` returns."""
        held = HeldState(holds, self._live(), self.version, self.updates, self.chain, self._subspace_id)
        holds.add(held)
        return held

    def load(self, state: StageState) -> None:
        """Load `state`. If subspace, names, shapes or values do not fit, raises OptimizerError and changes nothing.

        If `state` is in a file and reading it fails in the middle, `torn` is set.
        """
        if state.subspace_id != self._subspace_id:
            raise OptimizerError(
                f"the state belongs to subspace {state.subspace_id[:16] or 'none'}, this run has "
                f"{self._subspace_id[:16] or 'none'}, so the state cannot be used; set the model.residual, "
                "model.subspace_*, model.boundary* and model.anchor keys with which it was trained"
            )
        live = self._live()
        _check_state(state, live)
        self.torn = True
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(state.tensors[name])
        self.torn = False
        self.version, self.updates, self.chain = state.version, state.updates, state.chain

    def _visited(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """The tensors for one reading. If they are in the host's memory and steps are computed on an accelerator, it
        reads them too: pieces of them, one after another.
        """
        for tensor in tensors:
            if self._elsewhere is None or tensor.device.type != "cpu":
                yield tensor
                continue
            flat = tensor.reshape(-1)
            yield from (self._moved(flat[part]) for part in pieces(len(flat)))

    def _live(self) -> dict[str, Tensor]:
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}
        tables = {"param": parameters, **self._moments}
        return {f"{kind}/{name}": tensor for kind in KINDS for name, tensor in tables[kind].items()}


class _Rules:
    """The rules of one step, by which each parameter is updated."""

    def __init__(self, section: OptimizerSection, update: Update) -> None:
        self._section, self._update = section, update
        self._decaying = Factors.of(section, update, section.weight_decay)
        self._others = Factors.of(section, update, 0.0)

    @cached_property
    def _muon(self) -> Factors:
        return muon.factors_of(self._section, self._update)

    def is_muons(self, name: str, parameter: Tensor) -> bool:
        """Whether Muon updates this parameter, and not AdamW."""
        return self._section.kind == "muon" and is_hidden(name, parameter)

    def adamw(self, name: str, parameter: Tensor) -> Factors:
        return self._decaying if decays(name, parameter) else self._others

    def muon(self, state: Sequence[Tensor], mean: Tensor, scale: float, shape: torch.Size) -> None:
        """Update a parameter of this shape. state: the parameter and its two moments, flat."""
        parameter, exp_avg, exp_avg_sq = (tensor.view(shape) for tensor in state)
        muon.step(parameter, mean, exp_avg, exp_avg_sq, self._muon, self._update.learning_rate, scale)


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix of a layer, or a convolution, which is a matrix with one row for each output."""
    return parameter.ndim >= 2 and ".layers." in name


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies to a parameter: it does to matrices that are neither embeddings nor projectors."""
    return parameter.ndim >= 2 and "embed" not in name and not is_projector(name)


def _check_state(state: StageState, expected: Mapping[str, Tensor]) -> None:
    if not 0 <= state.updates <= state.version:
        raise OptimizerError(f"the state has {state.updates} updates in {state.version} steps, which is impossible")
    if len(state.chain) != 64 or not set(state.chain) <= set("0123456789abcdef"):
        raise OptimizerError(f"the chain digest {state.chain[:80]!r} is not 64 hex digits")
    if missing := expected.keys() - state.tensors.keys():
        raise OptimizerError(
            f"the state lacks {len(missing)} tensors, the first is {min(missing)!r}: is it of another stage?"
        )
    if extra := state.tensors.keys() - expected.keys():
        raise OptimizerError(
            f"the state has {len(extra)} unknown tensors, the first is {min(extra)!r}: is it of another stage?"
        )
    for name, tensor in state.tensors.items():
        want = expected[name]
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise OptimizerError(
                f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {want.dtype} {list(want.shape)}"
            )
        if not tensor.numel():
            continue
        lowest, highest = (bound.item() for bound in torch.aminmax(tensor))  # NaN if any; faster than isfinite()
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            raise OptimizerError(f"{name} contains NaN or infinity")
        if name.startswith("exp_avg_sq/") and lowest < 0:
            raise OptimizerError(f"{name} contains negative second moments")
