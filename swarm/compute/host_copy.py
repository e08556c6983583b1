"""A copy of a tensor on its way to the host, so that nobody waits for it before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class HostCopy:
    """Begins at once. On CUDA it goes into pinned memory while the device works on, elsewhere it is an ordinary one."""

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
        """The copy, on the CPU, once it is complete."""
        if self._event is not None:
            if not self._event.query():
                self._event.synchronize()
            self._event = None
        return self._values


def pinned(shape: Sequence[int], kind: torch.dtype, device: torch.device) -> Tensor:
    """Undefined memory of the host, which `device` can copy from by itself."""
    return torch.empty(tuple(shape), dtype=kind, pin_memory=device.type == "cuda")


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on `device`. For CUDA it goes by way of pinned memory, so that the host need not wait."""
    kind = torch.from_numpy(np.empty(0, values.dtype)).dtype
    host = pinned(values.shape, kind, device)
    host.numpy()[...] = values
    return host.to(device, non_blocking=True)
