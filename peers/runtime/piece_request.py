"""The request for pieces of a state or of a step's sums, while their stage trains."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

from peers.runtime.checkpoint_request import MAX_REQUEST_BYTES, RequestError

MAX_RUN = 16
"""Number of pieces in one answer."""
NOT_YET = b"\0"
"""The answer of a donor that does not have the index yet, but will have it."""
NOT_KEPT = b"\1"
"""The answer of a donor that does not have the content, and will not have it."""


class PieceKind(enum.Enum):
    STATE = "state"
    """The state of a version."""
    SUMS = "sums"
    """The sums of the step that leads from that version to the next."""


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """A request for `count` pieces from `first` on; 0: the index."""

    kind: PieceKind
    stage: int
    version: int
    first: int = 0
    count: int = 0
    packed: bool = False
    """If true, each piece is preceded by its length (u32), and is packed if that makes it shorter."""

    def encode(self) -> bytes:
        fields = {"kind": self.kind.value, "stage": self.stage, "version": self.version}
        fields |= {"first": self.first, "count": self.count, "packed": self.packed}
        return json.dumps({"pieces": fields}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> PieceRequest | None:
        """Read a request from its bytes. None if it is not a request for pieces. Raises RequestError."""
        if len(raw) > MAX_REQUEST_BYTES or not raw.startswith(b'{"pieces"'):
            return None
        try:
            fields = json.loads(raw)["pieces"]
            request = cls(**{**fields, "kind": PieceKind(fields["kind"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestError("not a request for pieces") from None
        numbers = (request.stage, request.version, request.first, request.count)
        if not all(type(n) is int and 0 <= n < 2**31 for n in numbers) or request.count > MAX_RUN:
            raise RequestError(f"{request.count!r} pieces from {request.first!r} on: at most {MAX_RUN} are allowed")
        if type(request.packed) is not bool:
            raise RequestError(f"packed is {request.packed!r:.80}, expected true or false")
        return request
