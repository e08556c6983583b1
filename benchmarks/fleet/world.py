"""The fleet's world: one coordinator, peers on machines of many kinds, and the internet between them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.fleet.coordinator import FleetCoordinator
from benchmarks.fleet.ground import Ground
from benchmarks.fleet.links import Weigh
from benchmarks.fleet.machine import machine, server
from benchmarks.fleet.peer import FleetPeer
from benchmarks.fleet.stopwatch import Stopwatch
from benchmarks.fleet.workload import Workload
from benchmarks.preemptions import Change, Preemptions
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Means
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.settings import Settings

COORDINATOR = Actor("coordinator", 0)
ARRIVE_S = 1.0
"""Seconds within which the first peers arrive."""


class FleetWorld(Ground):
    """The world of one run. It depends only on the arguments, except for the measured seconds."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        trace: Preemptions,
        seed: int,
        weigh: Weigh,
        spread: float,
        uplinks: tuple[float, float],
        offers: bool = False,
    ) -> None:
        super().__init__(settings, workload, seed, weigh)
        self.stopwatch = Stopwatch(CoordinatorCore(COORDINATOR, settings, 0, None, None))
        self.coordinator = FleetCoordinator(self, COORDINATOR, self.stopwatch, server())
        self._seed = seed
        self._spread = spread
        self._uplinks = uplinks
        self._offers = offers
        self._peers: dict[int, FleetPeer] = {}
        self.add(self.coordinator)
        self.coordinator.start()
        for number in range(trace.nodes):
            self.at(ARRIVE_S * self.random.random(), None, (self._come, number))
        for change in trace.changes:
            self.at(change.at_s, None, (self._change, change))

    def peers(self) -> Iterator[FleetPeer]:
        """The living peers."""
        return (peer for peer in self._peers.values() if peer.alive)

    def all_peers(self) -> Iterator[FleetPeer]:
        """All peers, including dead ones."""
        return (process for process in self.processes if isinstance(process, FleetPeer))

    def run_steps(self, steps: int, until: float) -> None:
        """Run until this number of steps is decided, or until this time."""
        done = self.journal.steps
        self.run(until, 1 << 62, lambda: len(done) >= steps)

    def _change(self, change: Change) -> None:
        for number in change.go:
            if (peer := self._peers.pop(number, None)) is not None:
                self.crash(peer)
        for number in change.come:
            self._come(number)

    def _come(self, number: int) -> None:
        found = machine(number, self._seed, self.regions.count, self._spread, self._uplinks)
        # a name as long as libp2p gives, for its bytes
        actor = Actor(f"12D3KooW{number:044d}", 1_760_000_000 + number)
        core = PeerCore(actor, COORDINATOR, self.settings)
        if self._offers:
            core.offers(Means(capacity=found.speed, uplink=found.up, downlink=found.down))
        peer = FleetPeer(self, actor, core, found)
        self._peers[number] = peer
        self.add(peer)
        peer.start()
