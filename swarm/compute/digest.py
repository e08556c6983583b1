"""Digests: 32 bytes of BLAKE3, in hex, that let replicas and the reference be compared."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import astuple

import torch
from blake3 import blake3
from torch import Tensor

from swarm.manifest import RunManifest
from swarm.protocol.update import Update

_APPLIED = struct.Struct("<dddd")
_INTEGERS = struct.Struct("<qq")


def reduced_digest(flat: Tensor) -> str:
    """Of a stage's reduced vector: its little-endian bytes."""
    return blake3(_bytes(flat)).hexdigest()


def first_chain(manifest: RunManifest, stage: int) -> str:
    """The chain digest of version 0."""
    return blake3(f"swarm chain {manifest.hash} {stage}".encode()).hexdigest()


def next_chain(previous: str, reduced: str, scale: float, update: Update) -> str:
    """The chain digest after a step: everything that was ever applied, and how."""
    applied = _APPLIED.pack(scale, *astuple(update))
    return blake3(bytes.fromhex(previous) + bytes.fromhex(reduced) + applied).hexdigest()


def state_digest(version: int, updates: int, tensors: Mapping[str, Tensor]) -> str:
    """Of a stage's full state: named parameters and moments, hashed in the order of their names."""
    state = StateDigest(version, updates)
    for name in sorted(tensors):  # one after the other: they may be read from a file
        state.begin(name, tensor := tensors[name])
        state.update(_bytes(tensor))
    return state.hexdigest()


class StateDigest:
    """The same, of tensors that are given in pieces, in the order of their names."""

    def __init__(self, version: int, updates: int) -> None:
        self._hasher = blake3(_INTEGERS.pack(version, updates))

    def begin(self, name: str, tensor: Tensor) -> None:
        """The bytes of `tensor` follow."""
        self._hasher.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())

    def update(self, part: memoryview) -> None:
        self._hasher.update(part)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


def run_digest(stage_digests: Iterable[str]) -> str:
    """Of the whole run: its stages' digests in stage order."""
    return blake3(b"".join(bytes.fromhex(digest) for digest in stage_digests)).hexdigest()


def reconstruction_digest(reconstruction: Tensor) -> int:
    """Of what crossed a boundary, fp32: 63 bits, never 0."""
    return (int.from_bytes(blake3(_bytes(reconstruction)).digest(8), "little") >> 1) or 1


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
