"""The bases: what a peer remembers of earlier visits to a microbatch, so that only the change need cross a boundary.

The data of such a run are ordered in step-blocks (swarm/data/order.py): microbatch `m` of a step holds the same samples
as microbatch `m` of the step at which the block was visited before. Both ends of a boundary keep the reconstruction of
that visit, each for itself; here is only which ones, by digest. What may be used is fixed when a pass begins, and what
a pass leaves is kept once its step is applied: an aborted or repeated pass leaves nothing.
"""

from __future__ import annotations

from typing import Protocol

from swarm.protocol.ids import BaseKey, End, Microbatch, StepNumber
from swarm.protocol.lineage import Crossings
from swarm.protocol.peer.io import SettleBases


class Visits(Protocol):
    """When the samples of a step are trained on: a function of the manifest alone."""

    @property
    def mutual(self) -> bool:
        """Whether both ends of a boundary build on a visit, or the sender alone."""
        ...

    def previous(self, step: int) -> int | None:
        """The step that visited them before; None at the first visit."""
        ...

    def next(self, step: int) -> int:
        """The step that visits them again, though the run may end before."""
        ...


class DeltaBases:
    """At most `capacity` bases, those needed soonest. Each end drops what it likes: the next visit is then whole."""

    def __init__(self, visits: Visits | None, steps: int, capacity: int) -> None:
        """`visits` None: the run's codec builds on nothing."""
        self._visits = visits
        self.steps = steps
        """After so many the run ends: what is for later visits is not kept."""
        self._capacity = capacity
        self._held: dict[BaseKey, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def crossings(self, step: StepNumber) -> Crossings:
        """What a training pass of `step` may build on."""
        if self._visits is None:
            return Crossings()
        visit = self._visits.previous(step)
        if visit is None:
            return Crossings(mutual=self._visits.mutual)
        usable: dict[End, dict[Microbatch, int]] = {end: {} for end in End}
        for key, digest in self._held.items():
            if key.visit == visit:
                usable[key.end][key.microbatch] = digest
        return Crossings(StepNumber(visit), usable[End.RECEIVED], usable[End.SENT], mutual=self._visits.mutual)

    def settle(self, step: StepNumber, crossings: Crossings) -> SettleBases | None:
        """`step` is applied: its crossings are the bases of the next visit. None where nothing is remembered."""
        if self._visits is None:
            return None
        visits, before = self._visits, set(self._held)
        spent = visits.previous(step)
        held = {key: digest for key, digest in self._held.items() if key.visit != spent}
        if visits.next(step) < self.steps:
            for (end, m), digest in crossings.left().items():
                held[BaseKey(step, m, end)] = digest
        if len(held) > self._capacity:
            soonest = sorted(held, key=lambda key: (visits.next(key.visit), key))
            held = {key: held[key] for key in soonest[: self._capacity]}
        self._held = held
        return SettleBases(
            step,
            kept=tuple(sorted(key for key in held if key.visit == step)),
            dropped=tuple(sorted(before.difference(held))),
        )

    def clear(self) -> None:
        """Another state is loaded: its history may be another one."""
        self._held.clear()
