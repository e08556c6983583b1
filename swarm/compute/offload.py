"""Offload: a stage's state is in the host's memory, and its device receives it piece by piece when it is needed.

The host then has the fp32 weights, Adam's moments and the reduced vector. The device has the weights with which it
computes (working_weights.py), the sums of gradients, and graphs. The same operations are computed in the same order as
without offload, so the results have the same bits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.compute.memory_table import STREAMED_AT_ONCE

_PAGE = 4096
"""Bytes of a page of the host's memory."""


def pieces(length: int) -> Iterator[slice]:
    """The slices of a flat tensor that are on the device one after another."""
    for start in range(0, length, STREAMED_AT_ONCE):
        yield slice(start, min(start + STREAMED_AT_ONCE, length))


def host_zeros(like: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Zeros in host memory, with the names and shapes of `like`, in fp32; page-locked for a CUDA `device`."""
    flat = host_vector(sum(each.numel() for each in like.values()), torch.float32, device).zero_()
    parts = flat.split([each.numel() for each in like.values()])
    return {name: part.view(each.shape) for (name, each), part in zip(like.items(), parts, strict=True)}


def host_vector(length: int, kind: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised vector in host memory. For a CUDA `device` it is page-locked, so that copies are asynchronous.

    torch's own page-locked tensors may take twice the bytes, because their sizes are rounded up to a power of two.
    """
    if device.type != "cuda" or not length:
        return torch.empty(length, dtype=kind)
    nbytes = math.ceil(length * kind.itemsize / _PAGE) * _PAGE
    return torch.from_numpy(np.asarray(_Locked(nbytes, device))).view(kind)[:length]


def wait_for(device: torch.device) -> None:
    """Wait until `device` has finished all copies."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


class _Locked:
    """A block of whole pages, which stay locked until numpy and torch no longer use them.

    If the driver refuses to lock them, copies are slower, and nothing else changes.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        raw = np.empty(nbytes + _PAGE, np.uint8)
        first = -raw.ctypes.data % _PAGE
        self._pages = raw[first : first + nbytes]
        self._device = device
        with torch.cuda.device(device):  # else the driver would use memory of the first card
            refused = int(torch.cuda.cudart().cudaHostRegister(self._pages.ctypes.data, nbytes, 0))
        self._is_locked = not refused
        if refused:
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=device)  # reports the refusal, which a later operation would report otherwise

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._pages.__array_interface__

    def __del__(self) -> None:
        if getattr(self, "_is_locked", False):
            with torch.cuda.device(self._device):
                torch.cuda.cudart().cudaHostUnregister(self._pages.ctypes.data)
