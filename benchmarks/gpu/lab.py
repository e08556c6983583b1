"""A device, how work on it is timed, and how its memory is counted."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from swarm.compute.graph import LiveBytes


class Lab:
    """A device. `smoke`: all sizes are small, so times say nothing."""

    def __init__(self, device: torch.device, smoke: bool) -> None:
        self.device = device
        self.smoke = smoke
        self.cuda = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device) if self.cuda else "cpu"
        self.peak = 0.0
        """TFLOP/s of a bf16 matrix product, once measured."""

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def tidy(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def times(self, run: Callable[[], object], repeats: int = 10, warm_up: int = 3) -> list[float]:
        """Seconds of each run, sorted. The device is synchronised before and after each."""
        found = []
        for number in range(warm_up + repeats):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            if number >= warm_up:
                found.append(time.perf_counter() - start)
        return sorted(found)

    def median(self, run: Callable[[], object], repeats: int = 10, warm_up: int = 3) -> float:
        return statistics.median(self.times(run, repeats, warm_up))

    def matrix_rate(self) -> float:
        """TFLOP/s in bf16."""
        size = 512 if self.smoke else 8192
        left, right = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        self.peak = 2 * size**3 / self.median(lambda: left @ right) / 1e12
        return self.peak

    @contextmanager
    def counted(self) -> Iterator[Allocated]:
        """Count the memory that is allocated on the device inside this context."""
        self.tidy()
        if self.cuda:
            yield Allocated(self.device)
        else:
            with LiveBytes() as live:  # the tensors that exist; an allocator's gaps are not counted
                yield Allocated(self.device, live)


class Allocated:
    """Bytes allocated on the device since this was made. On a CPU: bytes of all tensors that operations have made."""

    def __init__(self, device: torch.device, live: LiveBytes | None = None) -> None:
        self._device, self._live = device, live
        self._before = 0 if live is not None else torch.cuda.memory_allocated(device)
        self.new_peak()

    @property
    def now(self) -> int:
        return self._live.now if self._live is not None else torch.cuda.memory_allocated(self._device) - self._before

    @property
    def peak(self) -> int:
        """The most since the last `new_peak`."""
        if self._live is not None:
            return self._live.peak
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def new_peak(self) -> None:
        if self._live is not None:
            self._live.peak = self._live.now
        else:
            torch.cuda.reset_peak_memory_stats(self._device)
