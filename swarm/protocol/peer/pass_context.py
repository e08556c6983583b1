"""What a pass needs of the peer that takes part in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.protocol.slots import Slots
from swarm.protocol.timeouts import Observed


@dataclass(frozen=True, slots=True)
class PassContext:
    """It stays the same while the pass goes on. `slots` and `waits` outlive the pass."""

    me: Actor
    coordinator: Actor
    settings: Settings
    slots: Slots
    waits: Observed
    """The waits for frames so far: deadlines follow from them."""
    is_up: Callable[[Actor], bool]
    """Whether the connection to an actor is open."""
    out: Outbox
    is_paused: Callable[[], bool] = lambda: False
    """Whether this peer may begin no work for now."""
