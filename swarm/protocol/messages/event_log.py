"""Messages with which a coordinator copies the event log of another coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LOG_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LogWant:
    """Asks for the receiver's event log from byte `offset` on."""

    log: str
    """The `LogChunk.log` of the copy that the sender already has. Empty if it has no copy."""
    offset: int
    before: str
    """A hash of the last bytes before `offset` in the sender's copy."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of the sender's event log, at most `MAX_LOG_BYTES`."""

    log: str
    """A hash of the beginning of the log. It identifies the log: a different hash means a different log."""
    offset: int
    lines: bytes = field(repr=False)
