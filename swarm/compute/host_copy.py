"""Asynchronous copies between a device and the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class HostCopy:
    """A copy of a tensor to the host, which starts at once. On CUDA it runs asynchronously into pinned memory."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if source.device.type != "cuda":
            self._values = source.cpu()
            return
        with torch.cuda.device(source.device):
            self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._values.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> Tensor:
        """Wait for the copy; returns it, on the CPU."""
        if self._event is not None:
            if not self._event.query():
                self._event.synchronize()
            self._event = None
        return self._values


def pinned(shape: Sequence[int], kind: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised host memory, pinned so that `device` can copy from it asynchronously."""
    return torch.empty(tuple(shape), dtype=kind, pin_memory=device.type == "cuda")


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on `device`. For CUDA it uses pinned memory, so that the host does not wait."""
    kind = torch.from_numpy(np.empty(0, values.dtype)).dtype
    host = pinned(values.shape, kind, device)
    host.numpy()[...] = values
    return host.to(device, non_blocking=True)
