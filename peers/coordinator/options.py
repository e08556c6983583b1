"""The options of `swarm-peer coordinate`, besides the run and its home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers.runtime.fault import Fault
from swarm.events import EventListener
from swarm.net.invite import Invite
from swarm.net.passes import Pass
from swarm.state.initial import InitialParameters


@dataclass(frozen=True)
class CoordinateOptions:
    corpus: Path
    listen: tuple[str, ...]
    devices: int
    """Number of devices that may join with the printed invite."""
    open: bool = False
    """True if everybody may join with the printed invite; each device then gets its own pass."""
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    invite: Invite | None = None
    """The invite of another coordinator of the group."""
    initial: InitialParameters | None = None
    """The parameters of version 0, if the run begins with imported ones."""
    max_rate: int | None = None
    """Bytes/s that may be sent; None: no limit."""
    listeners: tuple[EventListener, ...] = ()
    faults: tuple[Fault, ...] = ()
    on_invite: Callable[[str, Pass, str], None] = field(default=lambda invite, given, fingerprint: None)
    """Called with the invite, its pass, and the fingerprint of the organiser's key."""
