"""Shards: files of token ids, little-endian uint16 or uint32 without a header, with a limited number of tokens each."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import numpy as np

from swarm.data.corpus_error import CorpusError
from swarm.manifest import Shard

Dtype = Literal["uint16", "uint32"]

_FIX = "run `swarm-peer prepare` again, or copy the organiser's folder"


def dtype_for(vocab_size: int) -> Dtype:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def disk_dtype(dtype: Dtype) -> np.dtype[np.unsignedinteger]:
    return np.dtype(dtype).newbyteorder("<")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to OSErrors raised inside this context, for example if the disk is full."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class ShardWriter:
    """Writes `prefix`-00000.bin, `prefix`-00001.bin, … into `folder`, with `limit` tokens each.

    Its methods raise OSError naming the file.
    """

    def __init__(self, folder: Path, prefix: str, dtype: Dtype, limit: int) -> None:
        assert limit > 0
        self._folder = folder
        self._prefix = prefix
        self._dtype = disk_dtype(dtype)
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._tokens = 0
        self.shards: list[Shard] = []

    def write(self, ids: np.ndarray) -> None:
        """Append token ids, shape (n,), any integer dtype."""
        while len(ids):
            if self._file is None:
                self._file = (self._folder / self._name()).open("wb")
            part = ids[: self._limit - self._tokens]
            raw = part.astype(self._dtype).tobytes()
            with naming(self._folder / self._name()):
                self._file.write(raw)
            self._hash.update(raw)
            self._tokens += len(part)
            ids = ids[len(part) :]
            if self._tokens == self._limit:
                self._finish_shard()

    def close(self) -> tuple[Shard, ...]:
        """Finish the last shard; returns all shards in order."""
        if self._file is not None:
            self._finish_shard()
        return tuple(self.shards)

    def abandon(self) -> None:
        """Close the open file after a failure; the written shards are not used."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # close() writes buffered data, and the disk may be full
                self._file.close()
            self._file = None

    def _name(self) -> str:
        return f"{self._prefix}-{len(self.shards):05d}.bin"

    def _finish_shard(self) -> None:
        assert self._file is not None
        with naming(self._folder / self._name()):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self.shards.append(Shard(file=self._name(), sha256=self._hash.hexdigest(), tokens=self._tokens))
        self._file, self._hash, self._tokens = None, hashlib.sha256(), 0


def map_shard(folder: Path, shard: Shard, dtype: Dtype) -> np.ndarray:
    """Check the size and hash of a shard, and map it into memory: (tokens,). Raises CorpusError."""
    if Path(shard.file).name != shard.file:
        raise CorpusError(f"shard {shard.file!r} must be a plain file name inside the corpus folder")
    path = folder / shard.file
    kind = disk_dtype(dtype)
    check_file(path, shard.sha256, nbytes=shard.tokens * kind.itemsize)
    return np.memmap(path, dtype=kind, mode="r")


def check_file(path: Path, sha256: str, nbytes: int | None = None) -> None:
    """Check a file. Raises CorpusError, which names the file, the expected and the actual value."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CorpusError(
            f"{path} is missing: run `swarm-peer prepare` again, or copy the organiser's folder"
        ) from None
    if nbytes is not None and size != nbytes:
        raise CorpusError(f"{path} has {size} bytes, expected {nbytes}: {_FIX}")
    if found != sha256:
        raise CorpusError(
            f"{path} has SHA-256 {found}, the manifest expects {sha256}: it is another corpus or a damaged copy; {_FIX}"
        )
