"""Inputs and actions of a coordinator's core, in addition to those of every core (`swarm.protocol.io`)."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, FrameKey, PassId, PassKind, Term
from swarm.protocol.io import Action, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import Command, Decision, Join, Status


@dataclass(frozen=True, slots=True)
class Recalled:
    """The newest report of a peer that this coordinator received while another one led. The peer may have advanced
    since.
    """

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
    """One verified copy of every stage of checkpoint `version` is in the archive. `term`: the term that ordered it.
    `digests`: for each stage, the digest of the copy. A later order for the version may have named others.
    """

    version: int
    term: Term
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointUnfetched:
    """None of the holders that an order named has given its copy of this stage."""

    version: int
    stage: int


@dataclass(frozen=True, slots=True)
class Transferring:
    """Bytes of a checkpoint arrive from a peer. So the peer is alive, even if its messages are queued behind them."""

    other: Actor


@dataclass(frozen=True, slots=True)
class ControlRequested:
    """The organiser requests a command (`controls`). The core answers with AnswerControl, perhaps later."""

    request: str
    """The requester's id of the request. A repeated id means the same request."""
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
    | CheckpointUnfetched
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
    """Make the term durable before any message is sent under it → TermWritten.

    `rollback_to`: the history continues from this version; decisions of later steps are void.
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
    """The result of a ControlRequested: the number of its command and the effect, or the reason for refusing it."""

    request: str
    number: int = 0
    text: str = ""
    error: str = ""
    unsure: bool = False
    """True if the same command may succeed later: no coordinator has answered in time, or too many requests wait. In
    the first case, this request itself may still take effect.
    """


@dataclass(frozen=True, slots=True)
class PassClosed(Action):
    """A forward-only pass is complete. `loss_sum`: the sum over its microbatches. `token`: the token that microbatch 0
    gave; −1 if the pass generates no text.
    """

    pass_id: PassId
    kind: PassKind
    loss_sum: float
    token: int


@dataclass(frozen=True, slots=True)
class CollectCheckpoint(Action):
    """Fetch each stage's shard of checkpoint `version` into the archive, one copy per stage → ArchiveStored.

    A rollback to an older version cancels the order, because the fetched shards then belong to a void history. An order
    from before the rollback that comes later is refused.
    """

    version: int
    term: Term
    holders: tuple[tuple[Actor, ...], ...]
    """For each stage, the actors that saved it with the agreed digest."""
    digests: tuple[str, ...]
    from_archive: bool = False
    """True if the holders are other members of the coordinators' group, which have the checkpoint in their archives."""
    proven: int = 0
    """The newest version known to be sound, whose checkpoint the archive must keep (as in SaveCheckpoint)."""


CoordinatorAction = (
    Send | Emit | Stop | Feed | WriteTerm | WriteRecord | WriteCommand | AnswerControl | PassClosed | CollectCheckpoint
)
