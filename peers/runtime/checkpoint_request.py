"""The request for a saved checkpoint of a stage, and its answer. A volunteer's disk and an archive use the same
request.

The coordinators collect checkpoints from peers for the archive. Members and observers get them from the archive. The
live state of a peer is fetched in pieces instead (peers/runtime/piece_request.py).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass

from swarm.buffer import Buffer
from swarm.net.bulk import Transfer
from swarm.state.folder import Checkpoint
from swarm.state.transfer import HEADER_BYTES, iter_file_chunks

MAX_REQUEST_BYTES = 512


class RequestError(ValueError):
    """A request for state that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    stage: int
    version: int

    def encode(self) -> bytes:
        return json.dumps({"checkpoint": asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes) -> CheckpointRequest:
        """Read a request from its bytes. Raises RequestError."""
        if len(raw) > MAX_REQUEST_BYTES:
            raise RequestError(f"a request of {len(raw)} bytes; at most {MAX_REQUEST_BYTES} are accepted")
        try:
            request = cls(**json.loads(raw)["checkpoint"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestError("not a request for a checkpoint") from None
        if not all(type(n) is int and 0 <= n < 2**31 for n in (request.stage, request.version)):
            raise RequestError(f"stage {request.stage!r} or version {request.version!r} is not a number from 0 on")
        return request


def checkpoint_transfer(checkpoint: Checkpoint, run_hash: str) -> Transfer:
    """A committed shard on disk as a transfer. Its chunks raise StateError if the file cannot be read."""
    return Transfer(HEADER_BYTES + checkpoint.nbytes, _chunks(checkpoint, run_hash))


async def _chunks(checkpoint: Checkpoint, run_hash: str) -> AsyncGenerator[Buffer, None]:
    for chunk in iter_file_chunks(checkpoint, run_hash):
        yield chunk
