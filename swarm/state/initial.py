"""Imported parameters: a folder with all parameters of a model, which can be version 0 of a run.

    parameters-00000.safetensors, …-00001, …   fp32, in the order of their names, independent of the cuts

The hash `initial.sha256` of RUN.toml is SHA-256 over names, shapes and values, not over files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from swarm.manifest import ModelSection
from swarm.models.kinds import parameter_shapes
from swarm.state.error import StateError
from swarm.state.layout import LENGTH, head_length, parse_head
from swarm.state.shard import file_parts, write_parts

SHARD_BYTES = 1 << 30
"""Largest size of a file in bytes, unless it contains a single larger tensor."""

_PATTERN = "parameters-*.safetensors"


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is read on demand, so that a model need not fit into memory to be imported."""

    shape: tuple[int, ...]
    load: Callable[[], Tensor]
    """Returns the tensor: fp32, contiguous, on the CPU."""


def write_initial(directory: Path, tensors: Mapping[str, LazyTensor], shard_bytes: int = SHARD_BYTES) -> str:
    """Write `tensors` into `directory`, in place of an earlier import; returns their SHA-256.

    Raises StateError for values that are not finite, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(_PATTERN):
        old.unlink()
    hasher = hashlib.sha256()
    for number, names in enumerate(_files(tensors, shard_bytes)):
        loaded = {}
        for name in names:
            tensor = tensors[name].load()
            bounds = torch.stack(torch.aminmax(tensor))
            if not bool(torch.isfinite(bounds).all()):
                raise StateError(name, "contains NaN or infinity, so it cannot be trained")
            _hash(hasher, name, tensor)
            loaded[name] = tensor
        write_parts(directory / f"parameters-{number:05d}.safetensors", file_parts(loaded, {"format": "pt"}))
    return hasher.hexdigest()


class InitialParameters:
    """The checked parameters in a folder. The files are mapped into memory, not read."""

    def __init__(self, directory: Path, model: ModelSection, sha256: str) -> None:
        """Open a folder. Raises StateError unless it has exactly the parameters of `model`, and their hash is
        `sha256`.
        """
        self._directory = directory
        self._tensors = _open(directory)
        wanted = {name: shape for s in range(model.stages) for name, shape in parameter_shapes(model, s).items()}
        self._check_shapes(wanted)
        hasher = hashlib.sha256()
        for name in sorted(self._tensors):
            _hash(hasher, name, self._tensors[name])
        if (actual := hasher.hexdigest()) != sha256:
            raise StateError(
                directory,
                f"the parameters hash to {actual[:16]}…, initial.sha256 is {sha256[:16]}…: name the right "
                "initial.directory, or import the model again",
            )

    def of_stage(self, model: ModelSection, stage: int) -> dict[str, Tensor]:
        """Parameters of one stage by name, fp32. They are pages of the file: do not write to them."""
        return {name: self._tensors[name] for name in parameter_shapes(model, stage)}

    def _check_shapes(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        for name in sorted(wanted.keys() | self._tensors.keys()):
            if name not in self._tensors:
                raise StateError(self._directory, f"{name} is missing, but the [model] of RUN.toml needs it")
            if name not in wanted:
                raise StateError(self._directory, f"{name} is not part of the [model] of RUN.toml")
            if (shape := tuple(self._tensors[name].shape)) != wanted[name]:
                raise StateError(self._directory, f"{name} is {list(shape)}, but [model] needs {list(wanted[name])}")


def _files(tensors: Mapping[str, LazyTensor], shard_bytes: int) -> Iterator[list[str]]:
    """The names of the tensors in each file, in order. A file has as many tensors as fit, and at least one."""
    names: list[str] = []
    filled = 0
    for name in sorted(tensors):
        nbytes = 4 * math.prod(tensors[name].shape)
        if names and filled + nbytes > shard_bytes:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += nbytes
    yield names


def _open(directory: Path) -> dict[str, Tensor]:
    paths = sorted(directory.glob(_PATTERN))
    if not paths:
        raise StateError(directory, "no imported parameters here: make them with `swarm-peer import`")
    found: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in _map(path):
            if name in found:
                raise StateError(path, f"{name} is also in another file: import the model again")
            found[name] = tensor
    return found


def _map(path: Path) -> Iterator[tuple[str, Tensor]]:
    where = str(path)
    try:
        with path.open("rb") as file:
            length = head_length(file.read(LENGTH.size), where)
            layout = parse_head(file.read(length), where)
        begin = LENGTH.size + length
        size = path.stat().st_size
        if size != begin + layout.values_bytes or begin % 4:
            raise StateError(
                path, f"has {size} bytes, but its head describes {begin + layout.values_bytes}: import the model again"
            )
        # copy-on-write: torch wants writable memory
        values = torch.from_numpy(np.memmap(path, dtype="<f4", mode="c", offset=begin))
    except (OSError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(path, f"cannot be read: {error}") from None
    for name, place in layout.places.items():
        first = place.start // 4
        yield name, values[first : first + place.count].view(place.shape)


def _hash(hasher: hashlib._Hash, name: str, tensor: Tensor) -> None:
    hasher.update(f"{name}\0{list(tensor.shape)}\0".encode())
    hasher.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
