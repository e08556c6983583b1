"""Deferred weight gradients: of microbatches whose input gradient was already sent to the previous stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swarm.compute.host_copy import HostCopy
from swarm.models.split_backward import Kept
from swarm.protocol.ids import Microbatch


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """The deferred weight gradients of one microbatch. `computed` gives the same bits as a backward in one piece."""

    at_once: Sequence[Tensor | None]
    """For each parameter: the gradient from the first half of the backward; None: all of it follows from `kept`."""
    kept: Sequence[Kept]
    loss: HostCopy | None

    def computed(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of all parameters, in their order."""
        found = dict(zip(map(id, parameters), self.at_once, strict=True))
        for each in self.kept:
            before, more = found[id(each.weight)], each.computed()
            found[id(each.weight)] = more if before is None else before + more
        whole = [gradient for gradient in found.values() if gradient is not None]
        assert len(whole) == len(parameters), "the output does not depend on every parameter"
        return whole

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it uses. Layers with the same input share it."""
        tensors = [tensor for each in self.kept for tensor in (each.read, each.gradient)]
        tensors += [gradient for gradient in self.at_once if gradient is not None]
        storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}
        return sum(storages.values())


class DueWeights:
    """The deferred weight gradients of one stage, by microbatch. Only the compute thread uses it."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Bytes of memory that all of them use."""
        self._due: dict[Microbatch, tuple[Due, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def keep(self, m: Microbatch, due: Due, nbytes: int) -> None:
        self._due[m] = due, nbytes
        self.nbytes += nbytes

    def of(self, m: Microbatch) -> Due:
        """The deferred gradients of a microbatch. Raises LookupError."""
        if m not in self._due:
            raise LookupError(f"microbatch {m} has no deferred weight gradients")
        return self._due[m][0]

    def drop(self, m: Microbatch) -> None:
        """Drop those of a microbatch, because they are in the sums or not needed."""
        if m in self._due:
            self.nbytes -= self._due.pop(m)[1]

    def clear(self) -> None:
        self._due.clear()
        self.nbytes = 0
