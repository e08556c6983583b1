"""What `swarm-peer coordinate` is told, besides the run and its home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers.runtime.fault import Fault
from swarm.events import EventListener
from swarm.net.invite import Invite
from swarm.state.initial import InitialParameters


@dataclass(frozen=True)
class CoordinateOptions:
    corpus: Path
    listen: tuple[str, ...]
    devices: int
    """How many may join with the invite that is printed."""
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    invite: Invite | None = None
    """Of another coordinator of the group."""
    initial: InitialParameters | None = None
    """What version 0 is made of, if the run begins with imported parameters."""
    max_rate: int | None = None
    """Bytes a second that may be sent; None: no limit."""
    listeners: tuple[EventListener, ...] = ()
    faults: tuple[Fault, ...] = ()
    on_invite: Callable[[str, int, str], None] = field(default=lambda invite, devices, fingerprint: None)
    """Given the invite, how many devices may join with it, and the fingerprint of the organiser's key."""
