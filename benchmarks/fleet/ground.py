"""The environment of the fleet's processes: the run's settings, the machine of each process, and the internet between
them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.fleet.journal import Journal
from benchmarks.fleet.links import FleetLinks, Weigh
from benchmarks.fleet.machine import FleetMachine
from benchmarks.fleet.regions import regions
from benchmarks.fleet.workload import Workload
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings
from swarm.simulation.kernel.timeline import Process, Timeline


class Ground(Timeline):
    """The environment. `weigh`: bytes of a control message from one actor to another."""

    def __init__(self, settings: Settings, workload: Workload, seed: int, weigh: Weigh) -> None:
        super().__init__(seed)
        self.settings = settings
        self.workload = workload
        self.regions = regions(seed)
        self.links = FleetLinks(self, self.regions, machine_of, weigh)
        self.journal = Journal()

    def crash(self, process: Process) -> None:
        """A process dies, perhaps with the data that it was sending. The processes connected to it are told."""
        if process.alive:
            process.alive = False
            process.loses_last_words = self.random.random() < 0.5
            self.links.process_died(process)


class FleetProcess(Process):
    """A process on a separate machine."""

    world: Ground

    def __init__(self, world: Ground, actor: Actor, core: Any, machine: FleetMachine) -> None:
        super().__init__(world, actor, core)
        self.machine = machine


def machine_of(process: Process) -> FleetMachine:
    assert isinstance(process, FleetProcess)
    return process.machine
