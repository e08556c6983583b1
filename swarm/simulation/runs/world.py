"""The virtual world of one small run: its faulty network, the checks of its invariants, and its toy archive."""

from __future__ import annotations

import math
from collections.abc import Callable

from swarm.protocol.coordinator.io import AnswerControl
from swarm.protocol.peer.delta_bases import Visits
from swarm.protocol.settings import Settings
from swarm.simulation.checks.watch import Watch
from swarm.simulation.faults.diverging import Diverging
from swarm.simulation.kernel.network import SimNetwork
from swarm.simulation.kernel.timeline import Process, Timeline
from swarm.simulation.toy.scribe import Scribe


class World(Timeline):
    """All objects of one simulated run."""

    def __init__(
        self,
        settings: Settings,
        seed: int,
        *,
        visits: Visits | None = None,
        choosing: bool = False,
        unlike: bool = False,
        diverging: Diverging | None = None,
        pausing: bool = False,
        first_round: int = 0,
        piece_s: float = 0.02,
        spoils: float = 0.0,
        tracing: bool = False,
    ) -> None:
        super().__init__(seed, tracing=tracing)
        self.settings = settings
        self.piece_s = piece_s
        """Average seconds to download a piece of a state while others train."""
        self.spoils = spoils
        """Fraction of fetched sums that arrive wrong."""
        self.first_round = first_round
        """Number of buckets that are reduced before the others can be computed."""
        self.visits = visits
        """Set if the peers' codec builds on earlier visits."""
        self.choosing = choosing
        """True if the coordinator chooses codecs from step to step."""
        self.unlike = unlike
        """True if gradients depend on the kind of machine that computes them."""
        self.diverging = diverging
        self.pausing = pausing
        self.on_phase: Callable[[str, Process], None] = lambda phase, process: None
        self.answered: Callable[[AnswerControl], None] = lambda answer: None
        self.coordinator: Process | None = None
        """In a group, the member that led last."""
        self.archive: dict[tuple[int, int], int] = {}
        """The coordinator's archive, {(stage, version): state}. It is on disk, so it survives."""
        self.archives = [self.archive]
        """The archives of all members, if there is a group."""
        self.network = SimNetwork(self)
        self.watch = Watch(self)
        self.scribe: Scribe | None = None
        """Receives the coordinators' events."""
        self.finished_at = math.inf
        """The time when the coordinator stopped because the run was complete."""

    def crash(self, process: Process) -> None:
        """The process is gone, with its memory. Processes connected to it are told soon."""
        for each in process.mates:
            self._crash(each)

    def _crash(self, process: Process) -> None:
        if not process.alive:
            return
        if self.trace is not None:
            self.note(f"*** {process.label} is killed")
        self.watch.leaving.disturbed = True
        process.alive = False
        process.loses_last_words = self.random.random() < 0.5
        process.wiped()
        self.network.process_died(process)
