"""The sources of a simulated peer's state, and its checkpoints, which survive a crash on its `Disk`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.protocol.donors import verdict
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.peer import io as peer_io
from swarm.protocol.peer.status_reports import Saved
from swarm.simulation.faults.lie import GRUDGING_S
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.sim_catch_up import Loans
from swarm.simulation.toy.toy_model import initial_state, state_digest

_LOAD_S, _SAVE_S, _FETCH_TIMEOUT_S = 0.05, 0.03, 1.0
_ALONE_S, _ASK_AGAIN_S = 2.0, 0.1
"""How long to wait for a second person's copy, and how often to ask for it, in seconds."""


@dataclass(slots=True)
class Disk:
    """The disk of a volunteer's machine: {(stage, version): state}."""

    checkpoints: dict[tuple[int, int], int] = field(default_factory=dict)

    def preferred(self) -> Saved | None:
        """The stage of the newest checkpoint. It is unknown to which history its version belongs."""
        if not self.checkpoints:
            return None
        _, stage = max((version, stage) for stage, version in self.checkpoints)
        return Saved(StageIndex(stage))


class SimStorage:
    """The storage of one process. `disk` outlives it. `loaded`: called with the loaded state, or None if loading
    failed.
    """

    def __init__(
        self, peer: PeerBody, disk: Disk, loans: Loans, loaded: Callable[[peer_io.LoadState, int | None], None]
    ) -> None:
        self.disk = disk
        self._peer = peer
        self._loans = loans
        self._loaded = loaded
        self._loads = 0
        """Number of orders to load. The result of an older order is void."""
        self._asks_until = math.inf
        """The time until which the current order waits for donors of a second person."""

    # ------------------------------------------------------------ loading

    def load(self, action: peer_io.LoadState) -> None:
        """Load a state, then call `loaded`."""
        self._loads += 1
        self._asks_until = math.inf
        self._later(_LOAD_S * self._waver(), (self._fetch, (self._loads, action)))

    def _fetch(self, request: tuple[int, peer_io.LoadState]) -> None:
        """Half of the load time has passed. Donors copy their states now, unless they were told to before."""
        load, action = request
        if load != self._loads:
            return
        if self._loans.are_lent(action):
            self._loans.download(action)
            return
        if self._is_alone(action):
            self._later(_ASK_AGAIN_S, (self._fetch, request))
            return
        source, state = self._found(action)
        delay = _LOAD_S * self._waver()
        if source is not None and (source.stalled or self._peer.world.network.cut(self._peer, source)):
            state, delay = None, _FETCH_TIMEOUT_S
        if isinstance(source, PeerBody) and source.lies("grudging"):
            delay += GRUDGING_S
        self._later(delay, (self._fetched, (load, action, source, state)))

    def _found(self, action: peer_io.LoadState) -> tuple[Process | None, int | None]:
        """The source of the state, unless the state is initialised here, and the state."""
        world, key = self._peer.world, (action.stage, action.version)
        if action.archive is not None:
            source = world.by_actor[action.archive]
            return source, source.archived(key)
        if action.donors:
            return self._given(action)
        if action.version:
            return None, None
        if world.settings.imported:
            raise Violation("contract", f"{self._peer.label} should initialise version 0, which is imported")
        return None, initial_state(action.stage)

    def _is_alone(self, action: peer_io.LoadState) -> bool:
        """Return True if only one person's donors give the state so far, and others may do so soon."""
        copies, world = self._copies(action), self._peer.world
        if not copies or verdict(copies, action.donors).told_by > 1:
            return False
        self._asks_until = min(self._asks_until, world.now + _ALONE_S)
        others = [found for found in self._reached(action) if found.actor not in copies and found.alive]
        return bool(others) and world.now < self._asks_until

    def _reached(self, action: peer_io.LoadState) -> list[Process]:
        world = self._peer.world
        there = [found for donor in action.donors if (found := world.by_actor.get(donor.actor)) is not None]
        return [found for found in there if not found.stalled and not world.network.cut(self._peer, found)]

    def _copies(self, action: peer_io.LoadState) -> dict[Actor, int]:
        """The states of the donors that can be reached and have them."""
        given = {found.actor: found.live_state(action.stage, action.version) for found in self._reached(action)}
        return {actor: state for actor, state in given.items() if state is not None}

    def _given(self, action: peer_io.LoadState) -> tuple[Process | None, int | None]:
        """A donor that gives what most people among the donors give, with that state. Without any answer, a donor that
        does not answer.
        """
        world, copies = self._peer.world, self._copies(action)
        if not copies:
            return next((found for donor in action.donors if (found := world.by_actor.get(donor.actor))), None), None
        teller = min(verdict(copies, action.donors).tellers)
        return world.by_actor[teller], copies[teller]

    def _fetched(self, result: tuple[int, peer_io.LoadState, Process | None, int | None]) -> None:
        load, action, source, state = result
        if load == self._loads and source is not None and self._peer.lies("hoarding"):
            self.load(action)
        elif load == self._loads:
            self._loaded(action, None if source is not None and not source.alive else state)

    # ------------------------------------------------------------ what others, and it later, can have of it

    def live_state(self, stage: int, version: int) -> int | None:
        """As `Process.live_state` says."""
        peer = self._peer
        if not peer.alive or peer.keeps_its_state or (peer.stage, peer.version) != (stage, version):
            return None
        return peer.given()

    def snapshot(self, stage: int, version: int) -> int | None:
        """As `Process.snapshot` says."""
        if not self._peer.alive or self._peer.keeps_its_state:
            return None
        live = self.live_state(stage, version)
        return self.disk.checkpoints.get((stage, version)) if live is None else live

    def save(self, action: peer_io.SaveCheckpoint) -> None:
        peer = self._peer
        if peer.version != action.version:
            raise Violation("contract", f"{peer.label} wants a checkpoint of version {action.version}")
        peer.world.on_phase("checkpointing", peer)
        self._later(_SAVE_S * self._waver(), (self._saved, (action, peer.stage_held, peer.state)))

    def _saved(self, copy: tuple[peer_io.SaveCheckpoint, int, int]) -> None:
        order, stage, state = copy
        version = order.version
        if self._peer.world.watch.nonfinite.is_spoilt(version) or self._peer.lies("spoilt"):
            self._peer.feed(peer_io.StateSpoilt(version, order.number))
            return
        self.disk.checkpoints[stage, version] = state
        self._peer.feed(peer_io.CheckpointSaved(version, state_digest(stage, version, state), order.number))

    # ------------------------------------------------------------ time

    def _waver(self) -> float:
        return 0.5 + self._peer.world.random.random()

    def _later(self, seconds: float, job: tuple[object, object]) -> None:
        world = self._peer.world
        world.at(world.now + seconds, self._peer, job)
