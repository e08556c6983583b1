"""The inputs (facts) and actions (orders to the driver) of every core.

A driver calls `core.handle(input, now)` and carries out the returned actions in order; it calls `handle(Tick(), now)`
no later than `core.next_wakeup()`. Times are seconds on the driver's monotonic clock. Inputs and actions of one kind of
core only are in that core's own `io`.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import Event
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Received:
    """A message of an admitted sender."""

    sender: Actor
    message: Message


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to `other` broke and an immediate redial failed (or its process is gone)."""

    other: Actor


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to `other` is open (again): what was in flight before may be lost."""

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
    """Hand `message` to the transport. It may never arrive."""

    to: Actor
    message: Message


@dataclass(frozen=True, slots=True)
class Emit(Action):
    """Append to the event log."""

    event: Event


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """The actor is finished. `failed`: the run is not done, and this actor cannot continue it."""

    reason: str
    failed: bool = False
