"""The options that the person who joins sets for a peer, besides the invite and the home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from peers.runtime.fault import Fault
from peers.stage.interrupts import Interrupts
from peers.stage.machine import Machine
from peers.stage.patience import DEFAULT_PATIENCE_S
from peers.stage.pausing import Watched
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.engine import StageEngine
from swarm.compute.least_pace import LeastPace
from swarm.compute.memory_table import Mode
from swarm.compute.precision import Precision
from swarm.events import EventListener
from swarm.net.host import DEFAULT_LISTEN


@dataclass(frozen=True)
class JoinOptions:
    """Options of one peer. `machine`: shared by the peers of one process."""

    machine: Machine = field(default_factory=Machine)
    on_call: bool = False
    """True if the coordinator asked for this peer."""
    device: str = "cpu"
    precision: Precision | None = None
    """The precision of matrix products; None: the device's default."""
    compiled: bool = False
    """True if torch compiles the layers."""
    offload: bool = False
    """True if the optimizer's state is in the host's memory, although the device has its own."""
    threads: int = 1
    slots: int = 0
    """Microbatches to work on at once; 0: chosen by the pipeline's depth and the memory."""
    capacity: float | None = None
    """Microbatches/s of the machine through the whole model; None: measured."""
    means_file: Path | None = None
    """Where measurements of the machine are kept; None: in the peer's home."""
    interrupts: Interrupts = field(default_factory=Interrupts)
    """Shared by the peers of one process."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    """Further DHT nodes through which the peer enters the DHT, if none of the invite's addresses answers."""
    patience_s: float = DEFAULT_PATIENCE_S
    """Seconds to wait for a coordinator that cannot be reached."""
    listeners: tuple[EventListener, ...] = ()
    faults: tuple[Fault, ...] = ()
    pace: LeastPace | None = None
    """The fastest pace at which the peer may compute. It replaces the measured speed of the machine."""
    splits: bool = True
    """True if a backward defers the gradients of the weights until there is no other work."""
    pads: bool = True
    """True if padding fills the pauses of connections that send slowly after a pause."""
    watched: Watched | None = None
    """The limits at which the peer pauses; None: the device is not watched."""
    engine: Callable[..., StageEngine] = StageEngine
    """The compute engine; the benchmarks use an emulated one."""

    @property
    def mode(self) -> Mode:
        """The settings on which the required memory depends."""
        return replace(Arithmetic.of(self.device, self.threads, self.precision).mode, offload=self.offload)
