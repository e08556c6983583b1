"""Weights' gradients that are due: of microbatches whose gradient is on the way to the stage before, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swarm.compute.host_copy import HostCopy
from swarm.models.split_backward import Kept
from swarm.protocol.ids import Microbatch


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """What one microbatch is to add to the sums. `computed` gives the same bits as a backward that was not split."""

    at_once: Sequence[Tensor | None]
    """By parameter: the gradients that the first half gave. None: it is all in `kept`."""
    kept: Sequence[Kept]
    loss: HostCopy | None

    def computed(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of all parameters, in their order."""
        found = dict(zip(map(id, parameters), self.at_once, strict=True))
        for each in self.kept:
            before, more = found[id(each.weight)], each.computed()
            found[id(each.weight)] = more if before is None else before + more
        whole = [gradient for gradient in found.values() if gradient is not None]
        assert len(whole) == len(parameters), "a parameter that the output does not depend on"
        return whole

    @property
    def nbytes(self) -> int:
        """Of memory that it holds. Layers that read the same input share it."""
        tensors = [tensor for each in self.kept for tensor in (each.read, each.gradient)]
        tensors += [gradient for gradient in self.at_once if gradient is not None]
        storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}
        return sum(storages.values())


class DueWeights:
    """Of one stage, by microbatch. The compute thread owns it."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Of memory that all of them hold."""
        self._due: dict[Microbatch, tuple[Due, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def keep(self, m: Microbatch, due: Due, nbytes: int) -> None:
        self._due[m] = due, nbytes
        self.nbytes += nbytes

    def of(self, m: Microbatch) -> Due:
        """Raises LookupError."""
        if m not in self._due:
            raise LookupError(f"no weights' gradients of microbatch {m} are due here")
        return self._due[m][0]

    def drop(self, m: Microbatch) -> None:
        """They are in the sums, or given up."""
        if m in self._due:
            self.nbytes -= self._due.pop(m)[1]

    def clear(self) -> None:
        self._due.clear()
        self.nbytes = 0
