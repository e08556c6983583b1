"""Tracks the bases: activations kept from the last visit to a microbatch, so that only changes are sent over a
boundary.

The data of such a run are ordered in step-blocks (swarm/data/order.py): microbatch `m` of a step holds the same samples
as microbatch `m` of the step that trained on this block before. Each end of a boundary keeps the activation of that
visit as the receiver decoded it. This file only tracks, by digest, which bases exist. The usable bases are fixed when a
pass begins. The new bases of a pass are kept only once its step is applied, so an aborted or repeated pass leaves
nothing.
"""

from __future__ import annotations

from typing import Protocol

from swarm.protocol.ids import BaseKey, End, Microbatch, StepNumber
from swarm.protocol.lineage import Crossings
from swarm.protocol.peer.io import SettleBases


class Visits(Protocol):
    """The steps that train on the same samples. They follow from the manifest alone."""

    @property
    def mutual(self) -> bool:
        """True if both ends of a boundary use bases; False if only the sender does."""
        ...

    def previous(self, step: int) -> int | None:
        """The previous step that visited the samples of `step`; None: this is the first visit."""
        ...

    def next(self, step: int) -> int:
        """The next step that visits the samples of `step`, even if the run ends before it."""
        ...


class DeltaBases:
    """At most `capacity` bases: those that are needed soonest. Each end may drop any base; then the next frame is sent
    whole.
    """

    def __init__(self, visits: Visits | None, steps: int, capacity: int) -> None:
        """`visits` None: the run's codec uses no bases."""
        self._visits = visits
        self.steps = steps
        """Number of steps in the run. Bases for visits after the last step are not kept."""
        self._capacity = capacity
        self._held: dict[BaseKey, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def crossings(self, step: StepNumber) -> Crossings:
        """The bases that a training pass of `step` may use."""
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
        """`step` is applied. Its frames become the bases of the next visit. None if the codec uses no bases."""
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
        """Another state is loaded, perhaps of another history: drop all bases."""
        self._held.clear()
