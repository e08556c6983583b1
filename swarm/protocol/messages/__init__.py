"""All messages between actors. The drivers map each of them one to one onto a message in proto/swarm/v1.

All messages are idempotent. They may be lost, repeated, delayed or reordered; the simulator does all four. A receiver
ignores a message that names an old pass, table number or incarnation.

The modules group the messages by subject; `from swarm.protocol.messages import Open` works for each of them.
"""

from swarm.protocol.messages.decision import CodecPair, Decision, StageOutcome
from swarm.protocol.messages.event_log import MAX_LOG_BYTES, LogChunk, LogWant
from swarm.protocol.messages.frames import (
    Frame,
    Lineage,
    Payload,
    Pending,
    Receipt,
    ReducedPart,
    ReducePart,
    Relay,
    Want,
    WithPayload,
)
from swarm.protocol.messages.group import (
    Adjourn,
    Append,
    Appended,
    ArchivedEntry,
    Canvass,
    Command,
    CommandEntry,
    DecisionEntry,
    Entry,
    Offer,
    Steer,
    Steered,
    TermEntry,
    Vote,
)
from swarm.protocol.messages.link_measurement import LinkRate, Ping, Pong
from swarm.protocol.messages.orders import (
    MAX_BANNED,
    MAX_DONORS,
    Amend,
    Assign,
    Banned,
    Decide,
    Dismiss,
    Disproved,
    Donor,
    Excuse,
    Fenced,
    Halt,
    LeaveSeat,
    Listener,
    Open,
    Prove,
    Release,
    TakeSeats,
    Twin,
)
from swarm.protocol.messages.padding import MAX_FILLER, PADDED_KINDS, Padding
from swarm.protocol.messages.reports import (
    MAX_AWAITED,
    MAX_PAUSED,
    MAX_SEATS,
    Failed,
    Join,
    Leave,
    Means,
    Prepared,
    Proof,
    Released,
    Result,
    Seating,
    Status,
    Unreachable,
)
from swarm.protocol.messages.stage_tables import NEAR, UNTOLD, Contribution, StageTable, attempt_under, is_near
from swarm.protocol.messages.telemetry import (
    LINK_KINDS,
    MAX_LINK_USES,
    MAX_SPANS,
    MAX_TRAITS,
    MAX_TROUBLE,
    WORK_KINDS,
    Figure,
    LinkUse,
    Span,
    Telemetry,
    Trait,
    Work,
)

Message = (
    Assign
    | Open
    | Amend
    | Release
    | Decide
    | Halt
    | Fenced
    | Dismiss
    | TakeSeats
    | LeaveSeat
    | Excuse
    | Prove
    | Disproved
    | Twin
    | Banned
    | Join
    | Prepared
    | Proof
    | Status
    | Released
    | Unreachable
    | Result
    | Failed
    | Leave
    | Telemetry
    | LogWant
    | LogChunk
    | Padding
    | Ping
    | Pong
    | Canvass
    | Vote
    | Append
    | Appended
    | Adjourn
    | Steer
    | Steered
    | Want
    | Pending
    | Frame
    | ReducePart
    | ReducedPart
    | Relay
)

__all__ = [
    "LINK_KINDS",
    "MAX_AWAITED",
    "MAX_BANNED",
    "MAX_DONORS",
    "MAX_FILLER",
    "MAX_LINK_USES",
    "MAX_LOG_BYTES",
    "MAX_PAUSED",
    "MAX_SEATS",
    "MAX_SPANS",
    "MAX_TRAITS",
    "MAX_TROUBLE",
    "NEAR",
    "PADDED_KINDS",
    "UNTOLD",
    "WORK_KINDS",
    "Adjourn",
    "Amend",
    "Append",
    "Appended",
    "ArchivedEntry",
    "Assign",
    "Banned",
    "Canvass",
    "CodecPair",
    "Command",
    "CommandEntry",
    "Contribution",
    "Decide",
    "Decision",
    "DecisionEntry",
    "Dismiss",
    "Disproved",
    "Donor",
    "Entry",
    "Excuse",
    "Failed",
    "Fenced",
    "Figure",
    "Frame",
    "Halt",
    "Join",
    "Leave",
    "LeaveSeat",
    "Lineage",
    "LinkRate",
    "LinkUse",
    "Listener",
    "LogChunk",
    "LogWant",
    "Means",
    "Message",
    "Offer",
    "Open",
    "Padding",
    "Payload",
    "Pending",
    "Ping",
    "Pong",
    "Prepared",
    "Proof",
    "Prove",
    "Receipt",
    "ReducePart",
    "ReducedPart",
    "Relay",
    "Release",
    "Released",
    "Result",
    "Seating",
    "Span",
    "StageOutcome",
    "StageTable",
    "Status",
    "Steer",
    "Steered",
    "TakeSeats",
    "Telemetry",
    "TermEntry",
    "Trait",
    "Twin",
    "Unreachable",
    "Vote",
    "Want",
    "WithPayload",
    "Work",
    "attempt_under",
    "is_near",
]
