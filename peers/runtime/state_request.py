"""The request of a bulk transfer: a stage at a version, live or as a saved checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MAX_REQUEST_BYTES = 512


class RequestError(ValueError):
    """A request for state that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class StateRequest:
    """`checkpoint`: the shard as saved on the holder's disk. `from_archive`: from the coordinator's archive."""

    stage: int
    version: int
    checkpoint: bool = False
    from_archive: bool = False

    def encode(self) -> bytes:
        return json.dumps({"state": asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes) -> StateRequest:
        """Raises RequestError."""
        if len(raw) > MAX_REQUEST_BYTES:
            raise RequestError(f"a request of {len(raw)} bytes; at most {MAX_REQUEST_BYTES} are accepted")
        try:
            fields = json.loads(raw)["state"]
            request = cls(**fields)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestError("not a request for state") from None
        numbers = (request.stage, request.version)
        flags = (request.checkpoint, request.from_archive)
        if not all(type(n) is int and 0 <= n < 2**31 for n in numbers) or not all(type(f) is bool for f in flags):
            raise RequestError(f"stage {request.stage!r}, version {request.version!r} are not a stage and a version")
        return request
