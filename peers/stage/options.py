"""What a peer is told by the person who joins, besides the invite and its home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers.runtime.fault import Fault
from peers.stage.interrupts import Interrupts
from peers.stage.machine import Machine
from peers.stage.patience import DEFAULT_PATIENCE_S
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.engine import StageEngine
from swarm.compute.least_pace import LeastPace
from swarm.compute.memory_table import Mode
from swarm.compute.precision import Precision
from swarm.events import EventListener
from swarm.manifest import SignedManifest
from swarm.net.host import DEFAULT_LISTEN


@dataclass(frozen=True)
class JoinOptions:
    """Of one peer. `machine`: peers of one process have the same."""

    machine: Machine = field(default_factory=Machine)
    on_call: bool = False
    """It was taken on because the coordinator asked."""
    device: str = "cpu"
    precision: Precision | None = None
    """What matrices are multiplied in; None: what is usual on the device."""
    compiled: bool = False
    """Layers are compiled by torch."""
    threads: int = 1
    slots: int = 0
    """Microbatches to work on at once; 0: as many as the pipeline's depth asks for and memory allows."""
    capacity: float | None = None
    """Microbatches a second of the machine through the whole model; None: measured."""
    means_file: Path | None = None
    """Where measurements of the machine are kept; None: in the peer's home."""
    interrupts: Interrupts = field(default_factory=Interrupts)
    """Peers of one process have the same."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    """More DHT nodes to enter by, should none of the invite's addresses answer."""
    patience_s: float = DEFAULT_PATIENCE_S
    """How long to wait for a coordinator that cannot be reached."""
    listeners: tuple[EventListener, ...] = ()
    faults: tuple[Fault, ...] = ()
    accept: Callable[[SignedManifest], bool] = field(default=lambda signed: True)
    """Asked when the invite was a bare address: is this the organiser you mean?"""
    pace: LeastPace | None = None
    """To compute no faster than; it stands for the machine's speed, which is not measured then."""
    splits: bool = True
    """Backwards leave the weights' gradients due, to be computed when there is nothing else to do."""
    engine: Callable[..., StageEngine] = StageEngine
    """What computes; the benchmarks put an emulated one here."""

    @property
    def mode(self) -> Mode:
        """What the memory that is needed depends on."""
        return Arithmetic.of(self.device, self.threads, self.precision).mode
