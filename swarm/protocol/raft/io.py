"""Inputs and actions of a member of a group of coordinators, in addition to those of a coordinator's core."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.coordinator.io import (
    AnswerControl,
    ArchiveStored,
    CheckpointUnfetched,
    CollectCheckpoint,
    ControlRequested,
    Feed,
    PassClosed,
    Transferring,
)
from swarm.protocol.ids import Actor
from swarm.protocol.io import Action, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import Entry, Offer


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """The `WriteGroup` with this number and all earlier ones are on disk."""

    number: int


GroupInput = (
    Received
    | LinkLost
    | LinkUp
    | Transferring
    | Tick
    | GroupWritten
    | ArchiveStored
    | CheckpointUnfetched
    | LeaveRequested
    | ControlRequested
)


@dataclass(frozen=True, slots=True)
class WriteGroup(Action):
    """Make this member's part of the group's record durable, atomically and in order → GroupWritten.

    `entries` replace the log from index `first` on. Entries up to `committed` are final. If they contain a rollback,
    the later versions in the archive become void too.
    """

    number: int
    ballot: int
    vote: str
    """The peer id that got this member's vote in `ballot`; empty: none."""
    first: int
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class SendEntries(Action):
    """Read the entries from index `first` on from disk, and send as many in an Append as fit into a message."""

    to: Actor
    ballot: int
    first: int
    committed: int
    offer: Offer | None


GroupAction = Send | Emit | Stop | Feed | WriteGroup | SendEntries | AnswerControl | PassClosed | CollectCheckpoint
