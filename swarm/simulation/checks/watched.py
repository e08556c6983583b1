"""The parts of a simulated world, and of a peer in it, that the checks use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from swarm.protocol.ids import Actor
from swarm.protocol.peer.delta_bases import Visits
from swarm.protocol.settings import Settings
from swarm.simulation.faults.diverging import Diverging
from swarm.simulation.kernel.network import SimNetwork
from swarm.simulation.kernel.timeline import Process


class PeerView(Protocol):
    """A training peer, as the checks see it."""

    pid: int
    actor: Actor
    stage: int | None
    version: int | None
    held_stage: int | None
    """The version that the peer will hold after the queued applies."""
    state: int
    deceived: bool
    disturbed_at: float
    began_to_load_at: float
    """The time when it began to load the first state of its stage."""

    @property
    def label(self) -> str: ...


class WorldView(Protocol):
    """A run, as the checks see it. `World` explains the members."""

    settings: Settings
    visits: Visits | None
    choosing: bool
    unlike: bool
    diverging: Diverging | None
    pausing: bool
    now: float
    network: SimNetwork

    @property
    def by_actor(self) -> Mapping[Actor, Process]: ...

    @property
    def archives(self) -> Sequence[Mapping[tuple[int, int], int]]: ...

    @property
    def coordinator(self) -> Process | None: ...

    def alive(self) -> Iterable[Process]: ...
