"""The layout of a shard: the head of a safetensors file, read and written without torch.

    length of the head u64 | head: JSON, space-padded to 8 bytes | values, one tensor after the other, no gaps

The head contains the name, shape and place of each fp32 tensor, and in `__metadata__` run, stage and version. Tensors
are sorted by name and the JSON is canonical, so equal states give equal bytes, and replicas can compare file hashes.
(The safetensors library reads these files, but writes metadata in random order.)
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol

from swarm.state.error import StateError

Shapes = Mapping[str, Sequence[int]]

KINDS = ("param", "exp_avg", "exp_avg_sq")
"""A parameter's tensors in a shard are `<kind>/<name>`: its value and AdamW's two moments."""

MAX_HEAD_BYTES = 16 << 20
LENGTH = struct.Struct("<Q")

_MAX_DIMS = 8
_MAX_NAME = 256
"""Longest name, characters. Names with characters that cannot be printed are refused, because errors print names."""
_COUNT = re.compile(r"[0-9]{1,15}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """The run, stage and version of a shard's state."""

    run_hash: str
    stage: int
    version: int
    """Number of applied steps, with skipped ones."""
    updates: int
    """Number of steps that changed the parameters, for AdamW's bias correction."""
    chain: str
    """Chain digest of all applied steps, hex."""
    digest: str
    """Digest of the state, as its owner computed it. A peer that loads the tensors can check it."""
    subspace_id: str = ""
    """The subspace of the parameters; empty for a dense model."""


@dataclass(frozen=True, slots=True)
class Place:
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the head."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    metadata: dict[str, str]
    places: dict[str, Place]
    """The place of each tensor by name, in the order of the values."""
    values_bytes: int


def head_bytes(metadata: Mapping[str, str], shapes: Shapes) -> bytes:
    """Length and head of a file that holds fp32 tensors of `shapes`, in the order of their names."""
    tree: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    start = 0
    for name in sorted(shapes):
        end = start + 4 * math.prod(shapes[name])
        tree[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [start, end]}
        start = end
    head = json.dumps(tree, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return LENGTH.pack(len(head)) + head


def head_length(raw: bytes | bytearray | memoryview | mmap, where: str) -> int:
    """Bytes of the JSON head that follow the first 8. Raises StateError naming `where`."""
    if len(raw) < LENGTH.size:
        raise StateError(where, f"has only {len(raw)} bytes, too few for a shard")
    (length,) = LENGTH.unpack_from(raw)
    if not 2 <= length <= MAX_HEAD_BYTES:
        raise StateError(where, f"has a head of {length} bytes; the limit is {MAX_HEAD_BYTES}")
    return int(length)


def parse_head(head: bytes | memoryview, where: str) -> Layout:
    """The layout in a JSON head, after checking that all tensors are fp32 and have no gaps or overlaps.

    Raises StateError naming `where`.
    """
    try:
        tree = json.loads(bytes(head))
        if not isinstance(tree, dict):
            raise ValueError("not a table")
        metadata = tree.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata must be text")
        found = [(name, *_entry(name, entry)) for name, entry in tree.items()]
    except (ValueError, RecursionError) as error:
        raise StateError(where, f"the head cannot be read: {error}") from None
    places: dict[str, Place] = {}
    position = 0
    for name, shape, start, end in sorted(found, key=lambda item: (item[2], item[3])):
        if start != position or end != start + 4 * math.prod(shape):
            raise StateError(where, f"{name} of shape {list(shape)} lies at {start} to {end}, expected from {position}")
        places[name] = Place(shape, start)
        position = end
    return Layout(metadata, places, position)


def to_metadata(meta: ShardMeta) -> dict[str, str]:
    return {
        "format": "pt",
        "run_hash": meta.run_hash,
        "stage": str(meta.stage),
        "version": str(meta.version),
        "updates": str(meta.updates),
        "chain": meta.chain,
        "state_digest": meta.digest,
        **({"subspace_id": meta.subspace_id} if meta.subspace_id else {}),
    }


def from_metadata(metadata: Mapping[str, str], where: str) -> ShardMeta:
    """The meta of a shard from its metadata. Raises StateError naming `where`."""

    def field(key: str, pattern: re.Pattern[str]) -> str:
        value = metadata.get(key, "")
        if not pattern.fullmatch(value):
            raise StateError(where, f"its metadata does not belong to a shard: {key} is {value!r:.100}")
        return value

    stage, version, updates = (int(field(key, _COUNT)) for key in ("stage", "version", "updates"))
    run_hash, chain, digest = (field(key, _HASH) for key in ("run_hash", "chain", "state_digest"))
    subspace_id = field("subspace_id", _HASH) if "subspace_id" in metadata else ""
    meta = ShardMeta(run_hash, stage, version, updates, chain, digest, subspace_id)
    if meta.updates > meta.version:
        raise StateError(where, f"has {meta.updates} updates in {meta.version} steps, which is impossible")
    return meta


class Named(Protocol):
    """An object that has a run, a stage and a version, such as the meta of a shard or the header of a transfer."""

    @property
    def run_hash(self) -> str: ...
    @property
    def stage(self) -> int: ...
    @property
    def version(self) -> int: ...


def check_meta(
    meta: Named,
    where: str,
    *,
    run_hash: str | None = None,
    stage: int | None = None,
    version: int | None = None,
) -> None:
    """Raise StateError unless `meta` has all given values."""
    wanted = {"run_hash": run_hash, "stage": stage, "version": version}
    for field, value in wanted.items():
        if value is not None and getattr(meta, field) != value:
            raise StateError(where, f"{field} is {getattr(meta, field)}, expected {value}")


def state_shapes(parameters: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes of a stage's whole state from those of its parameters."""
    return {f"{kind}/{name}": tuple(shape) for kind in KINDS for name, shape in parameters.items()}


def shard_limit(parameters: Shapes) -> int:
    """An upper bound on the bytes of a shard with these parameters."""
    shapes = state_shapes(parameters)
    return len(head_bytes({}, shapes)) + 4096 + sum(4 * math.prod(shape) for shape in shapes.values())


def _entry(name: str, entry: object) -> tuple[tuple[int, ...], int, int]:
    if not name.isprintable() or len(name) > _MAX_NAME:
        raise ValueError(f"{name!r:.80} is not a valid tensor name")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} needs dtype, shape and data_offsets")
    if entry["dtype"] != "F32":
        raise ValueError(f"{name} has dtype {entry['dtype']!r:.80}, expected F32")
    shape, offsets = entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or any(type(n) is not int or not 0 <= n < 2**62 for n in numbers):
            raise ValueError(f"{name} has shape or data_offsets that are not a list of sizes")
    if len(shape) > _MAX_DIMS or len(offsets) != 2:
        raise ValueError(f"{name} has {len(shape)} dimensions and {len(offsets)} offsets")
    return tuple(shape), offsets[0], offsets[1]
