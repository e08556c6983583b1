"""GGUF, the file format of llama.cpp: metadata and tensors, little-endian, versions 2 and 3. Mapped, not read.

    "GGUF" | version u32 | tensors u64 | entries u64 | entries: key, type u32, value | tensors: name, dims, type, place
    | padding | values of each tensor at its place, aligned

We wrote our own parser because it is short, and it checks every size in a file against the file's length before it
allocates memory. (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swarm.state.error import StateError
from swarm.state.pretrained.blocks import BLOCKS, UNKNOWN, Block

MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_ENTRIES = 1 << 16
"""Largest number of tensors and of metadata entries. In memory, each takes many times its bytes in the file."""
_MAX_TEXTS = 1 << 24
"""Largest number of texts in a list; the same limit as for the tokens of a tokenizer."""
_SHOWN = 8
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GgufNumbers:
    """A list of numbers in the metadata, which stays in the file: as Python objects, it would take 20 times the memory.

    It equals nothing but itself, so it can be compared with the single value that a key should have.
    """

    values: np.ndarray
    """Mapped from the file."""

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int | float | bool]:
        return iter(self.values.tolist())

    def __repr__(self) -> str:
        more = ", …" if len(self) > _SHOWN else ""
        return f"[{', '.join(map(str, self.values[:_SHOWN].tolist()))}{more}]"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    shape: tuple[int, ...]
    """The dimensions, outermost first. The file stores them in reverse order."""
    block: Block
    raw: np.ndarray
    """The tensor's bytes, uint8, mapped from the file."""

    def values(self) -> np.ndarray:
        """The decoded values: fp32, of `shape`."""
        return self.block.decode(self.raw).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Gguf:
    metadata: dict[str, Any]
    """The values by key: numbers, truth values, texts, lists of texts, and GgufNumbers."""
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> Gguf:
    """Open a GGUF file. Raises StateError for a malformed file or an unknown tensor type; OSError."""
    size = path.stat().st_size
    if size < 24:
        raise StateError(path, f"{size} bytes is too short for a GGUF file")
    cursor = _Cursor(path, np.memmap(path, dtype=np.uint8, mode="r"))
    if cursor.take(len(MAGIC)).tobytes() != MAGIC:
        raise StateError(path, "is not a GGUF file")
    if (version := cursor.number("<I")) not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise StateError(path, "is big-endian, for another kind of processor: convert the model again")
        raise StateError(
            path, f"is GGUF of version {version}; supported: {', '.join(map(str, _VERSIONS))}: convert the model again"
        )
    count, entries = cursor.count(24, _MAX_ENTRIES), cursor.count(12, _MAX_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("<I"))
    heads = [_tensor_head(cursor) for _ in range(count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise StateError(path, f"general.alignment is {alignment!r}, expected a whole number above 0")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in heads:
        if name in tensors:
            raise StateError(path, f"contains tensor {name} twice")
        tensors[name] = _tensor(path, cursor.data, name, shape, kind, start + offset)
    return Gguf(metadata, tensors)


def _tensor_head(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dims = cursor.text(), cursor.number("<I")
    if not 1 <= dims <= _MAX_DIMS:
        raise StateError(cursor.path, f"tensor {name} has {dims} dimensions; 1 to {_MAX_DIMS} are supported")
    shape = tuple(cursor.number("<Q") for _ in range(dims))
    return name, shape[::-1], cursor.number("<I"), cursor.number("<Q")


def _tensor(path: Path, data: np.ndarray, name: str, shape: tuple[int, ...], kind: int, begin: int) -> GgufTensor:
    block = BLOCKS.get(kind)
    if block is None:
        known = ", ".join(found.name for found in BLOCKS.values())
        raise StateError(
            path,
            f"tensor {name} is {UNKNOWN.get(kind, f'of type {kind}')}, supported are {known}: use one of these types",
        )
    if shape[-1] % block.values:
        raise StateError(
            path, f"tensor {name} has rows of {shape[-1]} values, but {block.name} has blocks of {block.values}"
        )
    nbytes = math.prod(shape) // block.values * block.nbytes
    if begin + nbytes > len(data):
        raise StateError(
            path, f"tensor {name} ends at byte {begin + nbytes}, but the file at {len(data)}: it is incomplete"
        )
    return GgufTensor(shape, block, data[begin : begin + nbytes])


class _Cursor:
    """Reads the head sequentially. Raises StateError beyond the end of the file."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def take(self, nbytes: int) -> np.ndarray:
        end = self.position + nbytes
        if end > len(self.data):
            raise StateError(
                self.path,
                f"its head needs {nbytes} bytes at {self.position} of {len(self.data)}: the file is incomplete",
            )
        part = self.data[self.position : end]
        self.position = end
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0]

    def count(self, least_bytes: int, most: int | None = None) -> int:
        """Read a number of items, each of which needs at least `least_bytes` bytes of the rest of the file. `most`: how
        many are supported.
        """
        count = int(self.number("<Q"))
        if count * least_bytes > len(self.data) - self.position:
            raise StateError(self.path, f"its head announces {count} entries, more than the file has room for")
        if most is not None and count > most:
            raise StateError(self.path, f"its head announces {count} entries; at most {most} are supported")
        return count

    def text(self) -> str:
        raw = self.take(self.count(1)).tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise StateError(self.path, f"{raw[:40]!r} in its head is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise StateError(self.path, f"its head contains a value of unknown type {kind}")
        inner = self.number("<I")
        if inner == _STRING:
            return [self.text() for _ in range(self.count(8, _MAX_TEXTS))]
        if inner not in _NUMBERS:
            raise StateError(self.path, f"its head contains a list of unknown type {inner}")
        form = _NUMBERS[inner]
        width = struct.calcsize(form)
        raw = self.take(self.count(width) * width)
        return GgufNumbers(raw.view(np.ndarray).view(form))
