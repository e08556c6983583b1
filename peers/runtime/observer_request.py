"""The requests of an observer to a coordinator: for its state, a part of an event log, or the contents of the archive.

Checkpoints are requested in the same way as by members (peers/runtime/checkpoint_request.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from swarm.protocol.messages import LogChunk, LogWant

MAX_REQUEST_BYTES = 1024
MAX_PART_BYTES = 1 << 20
"""Maximum size of a part of a log in one answer, in bytes."""
MAX_ANSWER_BYTES = MAX_PART_BYTES + 4096
MAX_FACTS_BYTES = 4 << 20
"""Maximum size of an answer in JSON, in bytes."""
MAX_TOKENIZER_BYTES = 64 << 20
_MAX_TEXT = 128

STATUS, ARCHIVE, TOKENIZER, LOG = "status", "archive", "tokenizer", "log"


class ObserverRequestError(ValueError):
    """A request or an answer that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class ObserverRequest:
    """`what`: one of the constants above. For a log: the coordinator that wrote it, and the position (`LogWant`)."""

    what: str
    of: str = ""
    log: str = ""
    offset: int = 0
    before: str = ""

    @classmethod
    def part(cls, of: str, want: LogWant) -> ObserverRequest:
        """A request for a part of a log. `of`: the peer id of the coordinator that wrote the log."""
        return cls(LOG, of, want.log, want.offset, want.before)

    @property
    def want(self) -> LogWant:
        return LogWant(self.log, self.offset, self.before)

    def encode(self) -> bytes:
        return json.dumps({"observer": asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes) -> ObserverRequest | None:
        """Read a request from its bytes. None: it is a request of another kind. Raises ObserverRequestError."""
        if len(raw) > MAX_REQUEST_BYTES:
            raise ObserverRequestError(f"a request of {len(raw)} bytes; at most {MAX_REQUEST_BYTES} are accepted")
        try:
            fields = json.loads(raw)
            if not isinstance(fields, dict) or "observer" not in fields:
                return None
            request = cls(**fields["observer"])
        except (ValueError, TypeError, RecursionError):
            raise ObserverRequestError("not a request of an observer") from None
        texts = (request.what, request.of, request.log, request.before)
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
            raise ObserverRequestError("a text of the request is too long, or no text")
        if type(request.offset) is not int or not 0 <= request.offset < 2**62:
            raise ObserverRequestError("the offset of the request is out of range")
        return request


def encode_part(part: LogChunk | None) -> bytes:
    """Encode a part of a log as an answer; None: there is nothing new."""
    if part is None:
        return b""
    head = json.dumps({"log": part.log, "offset": part.offset}, separators=(",", ":"))
    return head.encode() + b"\n" + part.lines


def decode_part(raw: bytes) -> LogChunk | None:
    """Read a part of a log from an answer. Raises ObserverRequestError."""
    if not raw:
        return None
    head, newline, lines = raw.partition(b"\n")
    fields = decode_facts(head)
    log, offset = fields.get("log"), fields.get("offset")
    if not newline or not isinstance(log, str) or len(log) > _MAX_TEXT or type(offset) is not int or offset < 0:
        raise ObserverRequestError("not a part of a log")
    return LogChunk(log, offset, lines)


def decode_facts(raw: bytes) -> dict[str, Any]:
    """An answer in JSON. Raises ObserverRequestError."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ObserverRequestError("not an answer to an observer")
    return fields
