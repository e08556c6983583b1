"""Pieces: a large object is split into pieces, whose hashes form its index, to fetch it from several peers at once.

Replicas have equal bytes, so all of them compute the same index for a state at a version, or for the sums of a step. If
a piece has a wrong hash, only its sender is at fault. This file does no I/O with peers: an async driver moves the
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from swarm.atomic import write_whole
from swarm.buffer import Buffer
from swarm.state.error import StateError

PIECE_BYTES = 256 << 10
_HASH_BYTES = 32
_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"SwPx"


@dataclass(frozen=True, slots=True)
class Index:
    """The hashes of the pieces of `total` bytes. All pieces except the last have PIECE_BYTES bytes."""

    total: int
    hashes: tuple[bytes, ...]

    @classmethod
    def of_file(cls, path: Path) -> Index:
        """The index of a file. Raises OSError."""
        with path.open("rb", buffering=PIECE_BYTES) as file:
            return cls.of(file)

    @classmethod
    def of(cls, file: BinaryIO) -> Index:
        """The index of the rest of an open file. Raises OSError."""
        hashes, total = [], 0
        while piece := file.read(PIECE_BYTES):
            hashes.append(blake3(piece).digest())
            total += len(piece)
        return cls(total, tuple(hashes))

    def size(self, number: int) -> int:
        return min(PIECE_BYTES, self.total - number * PIECE_BYTES)

    def fits(self, number: int, piece: bytes | bytearray | memoryview) -> bool:
        return len(piece) == self.size(number) and blake3(piece).digest() == self.hashes[number]

    def encode(self) -> bytes:
        return _HEAD.pack(_MAGIC, len(self.hashes), self.total) + b"".join(self.hashes)

    @classmethod
    def decode(cls, raw: bytes | bytearray, limit: int, where: str) -> Index:
        """Decode an index. Raises StateError naming `where` if it is malformed, or if `total` exceeds `limit`."""
        if len(raw) < _HEAD.size:
            raise StateError(where, f"{len(raw)} bytes received are not an index of pieces")
        magic, count, total = _HEAD.unpack_from(raw)
        if magic != _MAGIC or count != pieces_in(total) or len(raw) != _HEAD.size + count * _HASH_BYTES:
            raise StateError(
                where, f"not a valid index of pieces: its {len(raw)} bytes name {count} pieces of {total} bytes"
            )
        if total > limit:
            raise StateError(where, f"has sent an index of {total} bytes; at most {limit} are accepted")
        body = bytes(raw[_HEAD.size :])
        return cls(total, tuple(body[i : i + _HASH_BYTES] for i in range(0, len(body), _HASH_BYTES)))


def pieces_in(total: int) -> int:
    return -(-total // PIECE_BYTES)


def index_bytes(total: int) -> int:
    """Size of the encoded index of an object of `total` bytes."""
    return _HEAD.size + pieces_in(total) * _HASH_BYTES


class SumsFile:
    """A file with the summed buckets of a step: the number of buckets, the length of each, then each bucket as it was
    sent.
    """

    _COUNT = struct.Struct("<I")

    @classmethod
    def write(cls, file: BinaryIO, count: int, buckets: Iterable[Buffer]) -> None:
        """Write `count` buckets one by one, without keeping them in memory.

        Raises OSError; ValueError if the number of buckets is not `count`.
        """
        lengths = []
        file.seek(cls._COUNT.size * (count + 1))
        for bucket in buckets:
            write_whole(file, view := memoryview(bucket).cast("B"))
            lengths.append(len(view))
        if len(lengths) != count:
            raise ValueError(f"got {len(lengths)} buckets of sums, but {count} were announced")
        file.seek(0)
        write_whole(file, b"".join(map(cls._COUNT.pack, (count, *lengths))))

    @classmethod
    def limit(cls, buckets: int, largest: int) -> int:
        """An upper bound on its size in bytes, with `buckets` buckets of at most `largest` bytes."""
        return cls._COUNT.size * (buckets + 1) + buckets * largest

    @classmethod
    def read(cls, raw: bytes | bytearray, buckets: int, where: str) -> list[memoryview]:
        """The buckets in the file's bytes. Raises StateError naming `where`."""
        head = cls._COUNT.size * (buckets + 1)
        if len(raw) < head or cls._COUNT.unpack_from(raw)[0] != buckets:
            raise StateError(where, f"{len(raw)} bytes are not sums of {buckets} buckets")
        lengths = [cls._COUNT.unpack_from(raw, cls._COUNT.size * (b + 1))[0] for b in range(buckets)]
        if head + sum(lengths) != len(raw):
            raise StateError(where, f"the sums need {head + sum(lengths)} bytes, but there are {len(raw)}")
        found, view = [], memoryview(raw)
        for length in lengths:
            found.append(view[head : head + length])
            head += length
        return found
