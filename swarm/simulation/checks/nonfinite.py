"""Where results are not finite in a run, and whether a second attempt confirmed them."""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol.ids import PassId
from swarm.simulation.faults.diverging import Diverging


class Nonfinite:
    """The non-finite results that a scenario plants, and the steps in which peers found them."""

    def __init__(self, diverging: Diverging | None, rate: Callable[[], float]) -> None:
        """`rate` returns the commanded learning rate, on which the divergence depends."""
        self._diverging, self._rate = diverging, rate
        self.gradients: dict[tuple[int, int], int | None] = {}
        """The planted gradients that are not finite: {(stage, step): term}. Term None: they are not finite in every
        term.
        """
        self.overflowing: set[tuple[int, int]] = set()
        """(stage, step) pairs whose results for a neighbour are not finite."""
        self.reproduced: set[int] = set()
        """Steps with non-finite results in two terms."""
        self._first_term: dict[int, int] = {}
        """For each step, the term in which a non-finite result was found first."""

    def is_finite(self, stage: int, pass_id: PassId) -> bool:
        """Return True if the peers of `stage` find their reduced gradient finite in this pass."""
        term = self.gradients.get((stage, pass_id.step), -1)
        if term is not None and term != pass_id.term and not self.is_unusable(pass_id.version):
            return True
        self.found(pass_id)
        return False

    def is_unusable(self, version: int) -> bool:
        """Return True if the parameters of this version give non-finite results."""
        diverging = self._diverging
        return diverging is not None and diverging.is_so(version, self._rate())

    def is_spoilt(self, version: int) -> bool:
        """Return True if parameters and moments of this version are not finite."""
        diverging = self._diverging
        return diverging is not None and diverging.shows and self.is_unusable(version)

    def found(self, pass_id: PassId) -> None:
        """A result in this pass is not finite."""
        if self._first_term.setdefault(pass_id.step, pass_id.term) != pass_id.term:
            self.reproduced.add(pass_id.step)
