"""How an open pass may end."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.coordinator.membership.doubts import Doubted
from swarm.protocol.coordinator.passes.drift import Drift
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Decision


@dataclass(frozen=True, slots=True)
class Decided:
    """Every stage is prepared: write the decision to the record."""

    decision: Decision
    without: frozenset[Actor]
    """Actors that died when all others were prepared."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A forward-only pass has all its results."""

    loss_sum: float
    token: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The step must be run again under a new term. A forward-only pass is dropped instead."""

    reason: str
    idle: tuple[tuple[Actor, str], ...] = ()
    """Actors without siblings that did not do their work, with the reasons. Others should take their places."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A forward-only pass has taken too long. It is dropped, because it must not delay training."""

    reason: str
    who: tuple[Actor, ...]
    """Actors that had work in the pass and did not finish any of it."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """Replicas computed the step with different states. The step is done again without some of them."""

    drifts: tuple[Drift, ...]


@dataclass(frozen=True, slots=True)
class Spoilt:
    """Parameters or moments of several stages are not finite, whichever peers compute: the run has diverged."""

    what: str


Outcome = Decided | Completed | GiveUp | Drifted | Dropped | Spoilt | Doubted
