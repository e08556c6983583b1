"""Transfer: converts a saved shard to chunks and back. It does no network I/O: an async driver moves the bytes.

Peers send their saved checkpoints to the archive in this form, and the archive sends them to peers and observers. A
live state is fetched in pieces instead (`swarm/state/pieces.py`).

A transfer is a fixed header (run, stage and version of the state, size, BLAKE3 of the whole), followed by the bytes of
the shard file. The receiver knows which state it expects, and its largest size; it allocates nothing for another
header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from swarm.atomic import write_whole
from swarm.state.error import StateError
from swarm.state.folder import Checkpoint
from swarm.state.layout import Shapes, ShardMeta, check_meta, shard_limit, state_shapes
from swarm.state.room import need_room

if TYPE_CHECKING:  # not imported at run time, so that the archive can receive without torch
    from swarm.state.shard import Shard, Tensors

CHUNK_BYTES = 256 * 1024

_MAGIC = b"SwST"
_VERSION = 1
_FIELDS = struct.Struct("<4sIIQ32sQ32s")
HEADER_BYTES = _FIELDS.size


@dataclass(frozen=True, slots=True)
class TransferHeader:
    """The announced content: a stage's shard at a version, its size in bytes and the BLAKE3 of its bytes (hex)."""

    run_hash: str
    stage: int
    version: int
    size: int
    hash: str

    def encode(self) -> bytes:
        run, whole = bytes.fromhex(self.run_hash), bytes.fromhex(self.hash)
        return _FIELDS.pack(_MAGIC, _VERSION, self.stage, self.version, run, self.size, whole)

    @classmethod
    def decode(cls, raw: bytes | bytearray, where: str) -> TransferHeader:
        """Decode a header. Raises StateError naming `where`."""
        magic, version, stage, step, run, size, whole = _FIELDS.unpack(raw)
        if magic != _MAGIC or version != _VERSION:
            raise StateError(where, f"not a transfer of version {_VERSION}: it starts with {bytes(raw[:8]).hex()}")
        return cls(run.hex(), stage, step, size, whole.hex())


def iter_chunks(tensors: Tensors, meta: ShardMeta) -> Iterator[bytes]:
    """Header and shard in chunks of at most CHUNK_BYTES. The tensors must not change until the last chunk is taken."""
    from swarm.state.shard import shard_parts

    parts = shard_parts(tensors, meta)
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    size = sum(len(part) for part in parts)
    yield TransferHeader(meta.run_hash, meta.stage, meta.version, size, hasher.hexdigest()).encode()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[start : start + CHUNK_BYTES])


def iter_file_chunks(checkpoint: Checkpoint, run_hash: str) -> Iterator[bytes]:
    """Like `iter_chunks`, for a committed shard on disk. Raises StateError if the file cannot be read."""
    header = TransferHeader(run_hash, checkpoint.stage, checkpoint.version, checkpoint.nbytes, checkpoint.hash)
    try:
        with checkpoint.path.open("rb") as file:
            yield header.encode()
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StateError(checkpoint.path, f"cannot be read: {error.strerror}") from None


class Sink(Protocol):
    """The destination of a shard's bytes."""

    def open(self, size: int) -> None:
        """Called once, after the header was accepted. Raises OSError, for example if the disk lacks the room."""

    def write(self, part: memoryview) -> None: ...


class ChunkReader:
    """Checks a transfer while it arrives, and passes the shard's bytes to a sink. Chunks may have any boundaries."""

    def __init__(self, run_hash: str, stage: int, version: int, limit: int, sink: Sink, where: str) -> None:
        self._wanted = (run_hash, stage, version)
        self._limit = limit
        self._sink = sink
        self._where = where
        self._start = bytearray()
        self._hasher = blake3()
        self._taken = 0
        self.header: TransferHeader | None = None

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Process the next bytes. Raises StateError naming the sender; the transfer has then failed."""
        view = memoryview(chunk).cast("B")
        if len(view) > CHUNK_BYTES:
            raise StateError(self._where, f"has sent a chunk of {len(view)} bytes; the limit is {CHUNK_BYTES}")
        if self.header is None:
            need = HEADER_BYTES - len(self._start)
            self._start += view[:need]
            view = view[need:]
            if len(self._start) < HEADER_BYTES:
                return
            self.header = self._accept(TransferHeader.decode(self._start, self._where))
            self._sink.open(self.header.size)
        if not view:
            return
        if self._taken + len(view) > self.header.size:
            raise StateError(self._where, f"has sent more than the announced {self.header.size} bytes")
        self._sink.write(view)
        self._hasher.update(view)
        self._taken += len(view)

    def finish(self) -> TransferHeader:
        """Check that everything arrived and has the announced hash. Raises StateError naming the sender."""
        if self.header is None or self._taken != self.header.size:
            total = "?" if self.header is None else str(self.header.size)
            raise StateError(self._where, f"the transfer ended after {self._taken} of {total} bytes")
        if (actual := self._hasher.hexdigest()) != self.header.hash:
            raise StateError(self._where, f"BLAKE3 is {actual[:16]}…, but {self.header.hash[:16]}… was announced")
        return self.header

    def _accept(self, header: TransferHeader) -> TransferHeader:
        run_hash, stage, version = self._wanted
        check_meta(header, self._where, run_hash=run_hash, stage=stage, version=version)
        if header.size > self._limit:
            raise StateError(
                self._where, f"announces a shard of {header.size} bytes; this stage has at most {self._limit}"
            )
        return header


class ShardReceiver:
    """Receives one stage's saved checkpoint into a new file. Always call `close` at the end.

    `parameters`: shapes of the stage's parameters by name, from which the largest size follows.
    """

    def __init__(
        self, run_hash: str, stage: int, version: int, parameters: Shapes, path: Path, where: str = "the sender"
    ) -> None:
        self._shapes = state_shapes(parameters)
        self._where = where
        self._path = path
        self._sink = _File(path)
        self._reader = ChunkReader(run_hash, stage, version, shard_limit(parameters), self._sink, where)

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Process the next bytes, at most CHUNK_BYTES. Raises StateError and OSError; the transfer has then failed."""
        self._reader.feed(chunk)

    @property
    def hash(self) -> str | None:
        """The announced BLAKE3 of the shard's bytes; None until the header has arrived."""
        return None if self._reader.header is None else self._reader.header.hash

    def close(self) -> None:
        """Remove the file. A shard opened from it stays readable."""
        self._sink.close()

    def finish(self) -> Shard:
        """Check the hash and open the shard, as `open_shard` does. Raises StateError naming the sender."""
        from swarm.state.shard import open_shard

        header = self._reader.finish()
        shard = open_shard(self._path, self._where, shapes=self._shapes)
        self.close()
        check_meta(
            shard.meta,
            self._where,
            run_hash=header.run_hash,
            stage=header.stage,
            version=header.version,
        )
        return shard


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def open(self, size: int) -> None:
        need_room(self._path.parent, size)
        self._file = self._path.open("wb", buffering=0)

    def write(self, part: memoryview) -> None:
        assert self._file is not None
        write_whole(self._file, part)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)
