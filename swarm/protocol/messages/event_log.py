"""How a coordinator copies the event log of another one."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LOG_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LogWant:
    """Send me what your event log holds from `offset` on."""

    log: str
    """The name of the log that is known here (LogChunk); empty: none."""
    offset: int
    before: str
    """A hash of the last bytes in front of it."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of the sender's event log, at most `MAX_LOG_BYTES`."""

    log: str
    """A hash of the log's beginning: another one is another log."""
    offset: int
    lines: bytes = field(repr=False)
