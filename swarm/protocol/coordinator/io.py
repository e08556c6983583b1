"""Inputs and actions of a coordinator's core, beside those of every core (`swarm.protocol.io`)."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, FrameKey, PassId, PassKind, Term
from swarm.protocol.io import Action, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import Command, Decision, Join, Status


@dataclass(frozen=True, slots=True)
class Recalled:
    """The newest that a peer said of itself while another coordinator led. It may have got further since."""

    sender: Actor
    report: Join | Status


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """`WriteRecord` is on disk (fsync): the step is decided."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class TermWritten:
    """`WriteTerm` is on disk."""

    term: int


@dataclass(frozen=True, slots=True)
class ArchiveStored:
    """One verified copy of every stage of checkpoint `version` lies in the archive, as was ordered in `term`."""

    version: int
    term: Term


@dataclass(frozen=True, slots=True)
class Transferring:
    """Bytes of a checkpoint come in from a peer: it is there, though what it says may wait behind them on its line."""

    other: Actor


@dataclass(frozen=True, slots=True)
class ControlRequested:
    """The organiser wants something of the run (`controls`) → AnswerControl, sooner or later."""

    request: str
    """Its name, of whoever asks: one that comes again is the same request."""
    command: str
    value: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class CommandWritten:
    """`WriteCommand` is on disk: the command takes effect."""

    command: Command


CoordinatorInput = (
    Received
    | Recalled
    | LinkLost
    | LinkUp
    | Transferring
    | Tick
    | RecordWritten
    | TermWritten
    | ArchiveStored
    | LeaveRequested
    | ControlRequested
    | CommandWritten
)


@dataclass(frozen=True, slots=True)
class Feed(Action):
    """Send the tokens of `key.microbatch` to `to` as a Frame (boundary 0, forward)."""

    to: Actor
    key: FrameKey
    kind: PassKind


@dataclass(frozen=True, slots=True)
class WriteTerm(Action):
    """Make the term durable before anything is said under it → TermWritten.

    `rollback_to`: the history goes on from this version; decisions of later steps are void.
    """

    term: int
    rollback_to: int | None = None


@dataclass(frozen=True, slots=True)
class WriteRecord(Action):
    """Make the decision durable (fsync) → RecordWritten. This is the commit point."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class WriteCommand(Action):
    """Make a command durable (fsync) → CommandWritten."""

    command: Command


@dataclass(frozen=True, slots=True)
class AnswerControl(Action):
    """What has become of a ControlRequested: the number of its command and what that does; or why it is refused."""

    request: str
    number: int = 0
    text: str = ""
    error: str = ""
    unsure: bool = False
    """Nobody has answered: it may come into force yet."""


@dataclass(frozen=True, slots=True)
class PassClosed(Action):
    """A forward-only pass is complete: `loss_sum` over its microbatches, `token` that of microbatch 0 (else −1)."""

    pass_id: PassId
    kind: PassKind
    loss_sum: float
    token: int


@dataclass(frozen=True, slots=True)
class CollectCheckpoint(Action):
    """Fetch each stage's shard of checkpoint `version` into the archive, one copy a stage → ArchiveStored.

    A rollback to an older version ends it: what it has fetched is of a history that does not stand.
    """

    version: int
    term: Term
    holders: tuple[tuple[Actor, ...], ...]
    """By stage, actors that stored it with the agreed digest."""
    digests: tuple[str, ...]
    from_archive: bool = False
    """The holders are other members of the group, and it lies in their archives."""
    proven: int = 0
    """As in SaveCheckpoint: what the archive is not to forget."""


CoordinatorAction = (
    Send | Emit | Stop | Feed | WriteTerm | WriteRecord | WriteCommand | AnswerControl | PassClosed | CollectCheckpoint
)
