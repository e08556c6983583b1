"""A shard: one stage's parameters and optimizer state at one version, as a safetensors file.

The tensors are `param/<name>`, `exp_avg/<name>` and `exp_avg_sq/<name>`, all fp32. Peers exchange the bytes of the
file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from blake3 import blake3

from swarm.atomic import atomic_file, write_whole
from swarm.state.draft import file_hash
from swarm.state.error import StateError
from swarm.state.layout import (
    KINDS,
    LENGTH,
    Layout,
    Shapes,
    ShardMeta,
    check_meta,
    from_metadata,
    head_bytes,
    head_length,
    parse_head,
    to_metadata,
)

Tensors = Mapping[str, torch.Tensor]

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """The content of a shard file. The tensors share one buffer, or are read from the file at each access."""

    meta: ShardMeta
    tensors: Tensors

    def of_kind(self, kind: str) -> dict[str, torch.Tensor]:
        """Tensors by parameter name: `kind` is "param", "exp_avg" or "exp_avg_sq"."""
        return {name.removeprefix(f"{kind}/"): t for name, t in self.tensors.items() if name.startswith(f"{kind}/")}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written shard. `hash`: BLAKE3 of the whole file, hex. Equal state and meta give an equal hash on every
    machine.
    """

    hash: str
    nbytes: int


def shard_parts(tensors: Tensors, meta: ShardMeta) -> list[bytes | memoryview]:
    """The bytes of a shard, without a copy: the tensors must not change while the parts are used."""
    for name in tensors:
        if name.partition("/")[0] not in KINDS:
            raise StateError("a shard", f"cannot contain tensor {name!r}: names start with {', '.join(KINDS)}")
    return file_parts(tensors, to_metadata(meta))


def file_parts(tensors: Tensors, metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """The bytes of a safetensors file of fp32 tensors, in parts. Contiguous CPU tensors are not copied."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise StateError("a shard", f"tensor {name} is {tensor.dtype}, expected float32")
    head = head_bytes(metadata, {name: tensor.shape for name, tensor in tensors.items()})
    return [head, *(_raw(tensors[name]) for name in sorted(tensors) if tensors[name].numel())]


def write_parts(path: Path, parts: Sequence[bytes | memoryview]) -> WrittenFile:
    """Write a file atomically, and compute its hash. Raises OSError."""
    hasher = blake3()
    nbytes = 0
    with atomic_file(path) as file:
        for part in parts:
            write_whole(file, part)
            hasher.update(part)
            nbytes += len(part)
    return WrittenFile(hasher.hexdigest(), nbytes)


def read_shard(
    path: Path,
    *,
    run_hash: str | None = None,
    stage: int | None = None,
    version: int | None = None,
    shapes: Shapes | None = None,
    written: WrittenFile | None = None,
) -> Shard:
    """Read a shard and check all given arguments: meta, shapes of the tensors, hash of the file.

    Raises StateError, naming the file, if it is incomplete, corrupt, of another run, or not finite.
    """
    try:
        size = os.stat(path).st_size
        if written is not None and size != written.nbytes:
            raise StateError(path, f"has {size} bytes, the manifest says {written.nbytes}: the file is incomplete")
        buffer = bytearray(size)
        with path.open("rb", buffering=0) as file:
            filled = 0
            while count := file.readinto(memoryview(buffer)[filled : filled + _READ_BYTES]):
                filled += count
    except OSError as error:
        raise StateError(path, f"cannot be read: {error.strerror}") from None
    if filled != size:
        raise StateError(path, f"only {filled} of {size} bytes could be read")
    if written is not None:
        _check_hash(blake3(buffer).hexdigest(), written, str(path))
    shard = parse_shard(buffer, str(path), shapes=shapes)
    check_meta(shard.meta, str(path), run_hash=run_hash, stage=stage, version=version)
    return shard


def parse_shard(buffer: bytearray, where: str, *, shapes: Shapes | None = None) -> Shard:
    """The shard in `buffer`, whose memory the tensors share.

    Checks layout, names, `shapes` if given, that all values are finite and second moments not negative.
    Raises StateError naming `where`.
    """
    begin = LENGTH.size + head_length(buffer, where)
    layout, meta = _parse_head(memoryview(buffer)[LENGTH.size : begin], len(buffer) - begin, where, shapes)
    tensors: dict[str, torch.Tensor] = {}
    for name, place in layout.places.items():
        tensor = torch.empty(place.shape)
        if place.count:
            flat = torch.frombuffer(buffer, dtype=torch.float32, count=place.count, offset=begin + place.start)
            tensor = flat.view(place.shape)
        _check_values(name, tensor, where)
        tensors[name] = tensor
    return Shard(meta, tensors)


def open_shard(path: Path, where: str, *, shapes: Shapes | None = None, written: WrittenFile | None = None) -> Shard:
    """Open a shard file. Its tensors are read and checked at each access.

    The file may be unlinked meanwhile, but must not change. Opening checks everything except the values, and the hash
    of the file if `written` is given. Raises StateError naming `where`.
    """
    try:
        file = path.open("rb", buffering=0)
        size = os.fstat(file.fileno()).st_size
        if written is not None:
            _check_file(file, size, written, where)
        head = os.pread(file.fileno(), LENGTH.size, 0)
        begin = LENGTH.size + head_length(head, where)
        head = os.pread(file.fileno(), begin - LENGTH.size, LENGTH.size)
    except OSError as error:
        raise StateError(where, f"cannot be read: {error.strerror}") from None
    if len(head) != begin - LENGTH.size:
        raise StateError(where, f"has {size} bytes, but its head ends at byte {begin}: the file is incomplete")
    layout, meta = _parse_head(head, size - begin, where, shapes)
    return Shard(meta, _FileTensors(file, begin, layout, where))


class _FileTensors(Mapping[str, torch.Tensor]):
    """Reads a tensor from the file at each access. Raises StateError if this fails, or for forbidden values."""

    def __init__(self, file: FileIO, begin: int, layout: Layout, where: str) -> None:
        self._file = file
        self._begin = begin
        self._layout = layout
        self._where = where

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._layout.places[name]
        tensor = torch.empty(place.shape)
        if place.count:
            view = tensor.view(-1).view(torch.uint8).numpy().data
            _read_whole(self._file, view, self._begin + place.start, self._where)
        _check_values(name, tensor, self._where)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)


def _read_whole(file: FileIO, view: memoryview, start: int, where: str) -> None:
    filled = 0
    while filled < len(view):
        try:
            count = os.preadv(file.fileno(), [view[filled : filled + _READ_BYTES]], start + filled)
        except OSError as error:
            raise StateError(where, f"cannot be read: {error.strerror}") from None
        if not count:
            raise StateError(where, f"ends {len(view) - filled} bytes too early: the file is incomplete")
        filled += count


def _check_file(file: FileIO, size: int, written: WrittenFile, where: str) -> None:
    """Raise StateError if size or hash of the file differ from `written`. Raises OSError."""
    if size != written.nbytes:
        raise StateError(where, f"has {size} bytes, the manifest says {written.nbytes}: the file is incomplete")
    _check_hash(file_hash(file), written, where)


def _check_hash(actual: str, written: WrittenFile, where: str) -> None:
    if actual != written.hash:
        raise StateError(
            where, f"BLAKE3 is {actual[:16]}…, the manifest says {written.hash[:16]}…: the file is corrupt"
        )


def _parse_head(
    head: bytes | memoryview, values_bytes: int, where: str, shapes: Shapes | None
) -> tuple[Layout, ShardMeta]:
    """The layout and meta in a head. `values_bytes`: bytes after the head. Raises StateError if these do not match."""
    layout = parse_head(head, where)
    if values_bytes != layout.values_bytes:
        raise StateError(where, f"has {values_bytes} bytes of values, but its head describes {layout.values_bytes}")
    meta = from_metadata(layout.metadata, where)
    if shapes is not None:
        check_shapes({name: place.shape for name, place in layout.places.items()}, shapes, where)
    return layout, meta


def check_shapes(found: Shapes, wanted: Shapes, where: str) -> None:
    """Raise StateError naming the first tensor that is missing, unknown or of another shape."""
    for name in sorted(set(found) | set(wanted)):
        if name not in found:
            raise StateError(where, f"tensor {name} is missing")
        if name not in wanted:
            raise StateError(where, f"tensor {name} does not belong to this stage")
        if tuple(found[name]) != tuple(wanted[name]):
            raise StateError(where, f"tensor {name} has shape {list(found[name])}, expected {list(wanted[name])}")


def _check_values(name: str, tensor: torch.Tensor, where: str) -> None:
    kind = name.partition("/")[0]
    if kind not in KINDS:
        raise StateError(where, f"tensor {name!r} is not part of a shard")
    if not tensor.numel():
        return
    lowest, highest = (bound.item() for bound in torch.aminmax(tensor))  # NaN if any; 40 times faster than isfinite()
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise StateError(where, f"tensor {name} contains NaN or infinity")
    if kind == "exp_avg_sq" and lowest < 0:
        raise StateError(where, f"tensor {name} is a second moment with negative values")


def _raw(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data
