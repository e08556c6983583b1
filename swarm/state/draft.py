"""Drafts: shard files that are written directly from a source of state, without a copy in memory.

The values are written first. The head contains their digest, so it is written after all values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from swarm.atomic import write_whole
from swarm.state.layout import Shapes, ShardMeta, head_bytes, to_metadata
from swarm.state.room import need_room

_READ_BYTES = 1 << 20
_UNKNOWN = "0" * 64


class Given(Protocol):
    """What is learned by reading a whole state from a source."""

    @property
    def digest(self) -> str: ...
    @property
    def spoilt(self) -> bool: ...


class Source(Protocol):
    """One version of a stage's state, wherever it is stored. The fields are those of ShardMeta."""

    @property
    def version(self) -> int: ...
    @property
    def updates(self) -> int: ...
    @property
    def chain(self) -> str: ...
    @property
    def subspace_id(self) -> str: ...
    @property
    def shapes(self) -> Shapes:
        """Shapes of the tensors by name, as in `state_shapes`; all are fp32."""

    def give(self, write: Callable[[memoryview], None]) -> Given:
        """Write the bytes of all tensors, in the order of the tensors' names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A complete shard that is not committed yet. Its owner must commit or remove the file."""

    path: Path
    meta: ShardMeta
    nbytes: int
    spoilt: bool
    """Whether some values of the state are not finite."""

    def hash(self) -> str:
        """BLAKE3 hash of the file, hex. This reads the whole file. Raises OSError."""
        with self.path.open("rb", buffering=0) as file:
            return file_hash(file)

    def remove(self) -> None:
        """Remove the file if it still exists."""
        self.path.unlink(missing_ok=True)


def write_draft(path: Path, source: Source, run_hash: str, stage: int) -> Draft:
    """Write the state of `source` to `path`. Raises OSError, before anything is written if the disk lacks the room, and
    the errors of `source`; no file is left then.
    """

    def meta(digest: str) -> ShardMeta:
        return ShardMeta(run_hash, stage, source.version, source.updates, source.chain, digest, source.subspace_id)

    def head(digest: str) -> bytes:
        return head_bytes(to_metadata(meta(digest)), source.shapes)

    begin = len(head(_UNKNOWN))
    need_room(path.parent, begin + sum(4 * math.prod(shape) for shape in source.shapes.values()))
    try:
        with path.open("wb", buffering=0) as file:
            file.seek(begin)
            given = source.give(lambda part: write_whole(file, part))
            nbytes = file.tell()
            file.seek(0)
            write_whole(file, head(given.digest))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Draft(path, meta(given.digest), nbytes, given.spoilt)


def file_hash(file: FileIO) -> str:
    """BLAKE3 of the rest of an open file, hex. Raises OSError."""
    hasher, buffer = blake3(), bytearray(_READ_BYTES)
    while count := file.readinto(buffer):
        hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()


def sync(path: Path) -> None:
    """Make the bytes of a file durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
