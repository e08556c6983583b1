"""The objects of a peer that its passes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.indirect_siblings import IndirectSiblings
from swarm.protocol.settings import Settings
from swarm.protocol.slots import Slots
from swarm.protocol.timeouts import Observed


@dataclass(frozen=True, slots=True)
class PassContext:
    """Does not change during a pass. `slots`, `waits`, `pauses` and `indirect` outlive the pass."""

    me: Actor
    coordinator: Actor
    settings: Settings
    slots: Slots
    waits: Observed
    """The observed waiting times for frames. Deadlines follow from them."""
    pauses: Observed
    """The longest pause in the arrivals of each earlier reduction. Deadlines follow from them."""
    indirect: IndirectSiblings
    is_up: Callable[[Actor], bool]
    """Returns True if the connection to an actor is open."""
    out: Outbox
    is_paused: Callable[[], bool] = lambda: False
    """Returns True if this peer may begin no work now."""
