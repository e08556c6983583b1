"""One microbatch of a peer in a pass, and how far its work is."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarm.protocol.messages import Payload


class WorkPhase(enum.IntEnum):
    NEEDED = 0
    WANTED = 1
    INPUT = 2
    SUBMITTED = 3
    FORWARDED = 4
    BACKWARD = 5
    WEIGHTS = 6
    """The gradient was sent to the stage before. The microbatch is finished when its weight gradients are
    accumulated.
    """
    FINISHED = 7
    RELEASED = 8


@dataclass(slots=True)
class MicrobatchWork:
    """One microbatch of this peer."""

    phase: WorkPhase = WorkPhase.NEEDED
    moved: bool = False
    """True if a new table gave it to this peer during the pass. The stage before may already have its gradient, so the
    gradient is sent only on a WANT.
    """
    ask: bool = False
    """True if this peer must ask for its gradient: no peer sends it unasked, because the microbatch moved here or in
    the next stage.
    """
    asked_again: bool = False
    late: bool = False
    """True if the holder of its input answered that it has not computed it yet. It gives up its slot until then."""
    input: Payload | None = field(default=None, repr=False)
    gradient: Payload | None = field(default=None, repr=False)
