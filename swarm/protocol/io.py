"""The inputs (facts) and actions (orders to the driver) of every core.

A driver calls `core.handle(input, now)` and carries out the returned actions in order. It calls `handle(Tick(), now)`
no later than `core.next_wakeup()`. Times are seconds on the driver's monotonic clock. Inputs and actions of only one
kind of core are defined in that core's own `io`.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import Event
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Received:
    """A message of an admitted sender arrived."""

    sender: Actor
    message: Message


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to `other` broke and could not be opened again at once, or the other process is gone."""

    other: Actor


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to `other` is open (again). Messages that were in transit before may be lost."""

    other: Actor


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    reason: str


class Action:
    """An order to the driver."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Send(Action):
    """Give `message` to the transport. It may never arrive."""

    to: Actor
    message: Message


@dataclass(frozen=True, slots=True)
class Emit(Action):
    """Append an event to the event log."""

    event: Event


RUN_FINISHED = "the run is finished"
"""The reason of `Stop` when nothing is left to train."""


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """The actor must stop. `failed`: True if the run is not finished and this actor cannot continue it."""

    reason: str
    failed: bool = False
