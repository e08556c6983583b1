"""Digests (32 bytes of BLAKE3, in hex) for comparing replicas with each other and with the reference."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import astuple

import torch
from blake3 import blake3
from torch import Tensor

from swarm.compute.host_copy import HostCopy
from swarm.manifest import RunManifest
from swarm.protocol.update import Update

_APPLIED = struct.Struct("<dddd")
_INTEGERS = struct.Struct("<qq")
_PIECE = 1 << 22  # elements that are copied from a device to the host at once


def reduced_digest(flat: Tensor) -> str:
    """The digest of the little-endian bytes of a stage's reduced vector."""
    if flat.device.type == "cpu":
        return blake3(_bytes(flat)).hexdigest()
    hasher = blake3()
    coming: HostCopy | None = None
    for part in flat.split(_PIECE):  # the next piece is copied while this one is hashed
        here, coming = coming, HostCopy(part)
        if here is not None:
            hasher.update(_bytes(here.wait()))
    if coming is not None:
        hasher.update(_bytes(coming.wait()))
    return hasher.hexdigest()


class Hashing:
    """Computes `reduced_digest` in its own thread, which starts at once. The vector must not change meanwhile."""

    def __init__(self, flat: Tensor) -> None:
        self._found: Future[str] = Future()
        self._thread = threading.Thread(target=self._hash, args=(flat,), name="hash", daemon=True)
        self._thread.start()

    def result(self) -> str:
        return self._found.result()

    def _hash(self, flat: Tensor) -> None:
        try:
            self._found.set_result(reduced_digest(flat))
        except Exception as error:
            self._found.set_exception(error)


def first_chain(manifest: RunManifest, stage: int) -> str:
    """The chain digest of version 0."""
    return blake3(f"swarm chain {manifest.hash} {stage}".encode()).hexdigest()


def next_chain(previous: str, reduced: str, scale: float, update: Update) -> str:
    """The chain digest after a step. It covers all gradients applied so far, with their scales and updates."""
    applied = _APPLIED.pack(scale, *astuple(update))
    return blake3(bytes.fromhex(previous) + bytes.fromhex(reduced) + applied).hexdigest()


def state_digest(version: int, updates: int, tensors: Mapping[str, Tensor]) -> str:
    """The digest of a stage's full state: parameters and moments, hashed in the order of their names."""
    state = StateDigest(version, updates)
    for name in sorted(tensors):  # one at a time, because each may be read from a file
        state.begin(name, tensor := tensors[name])
        state.update(_bytes(tensor))
    return state.hexdigest()


class StateDigest:
    """Computes `state_digest` from tensors that come in pieces, in the order of their names."""

    def __init__(self, version: int, updates: int) -> None:
        self._hasher = blake3(_INTEGERS.pack(version, updates))

    def begin(self, name: str, tensor: Tensor) -> None:
        """Start a tensor; its bytes must follow in calls of `update`."""
        self._hasher.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())

    def update(self, part: memoryview) -> None:
        self._hasher.update(part)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


def run_digest(stage_digests: Iterable[str]) -> str:
    """The digest of a whole run, from its stages' digests in stage order."""
    return blake3(b"".join(bytes.fromhex(digest) for digest in stage_digests)).hexdigest()


def reconstruction_digest(reconstruction: Tensor) -> int:
    """A 63-bit digest, never 0, of a decoded activation, fp32."""
    return (int.from_bytes(blake3(_bytes(reconstruction)).digest(8), "little") >> 1) or 1


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
