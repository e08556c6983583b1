"""When a device did what it was given, on the host's clock, without waiting for it meanwhile."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


class DeviceClock:
    """Of the compute thread's stream. On a CPU everything is done when it is given, so a mark is the time itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self.asynchronous = self._cuda
        """Whether the host may go on while the device computes."""
        self._start: torch.cuda.Event | None = None
        self._started = 0.0

    def set(self) -> None:
        """Compare both clocks, once in a while: they drift. Waits for the device."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
            self._start = torch.cuda.Event(enable_timing=True)
            self._start.record()
            self._start.synchronize()
            self._started = time.perf_counter()

    def mark(self) -> Mark:
        """Where the device is to come to next."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def wait(self, mark: Mark) -> float:
        """Wait until the device has come to `mark`. Returns when that was."""
        if not isinstance(mark, float):
            mark.synchronize()
        return self.passed(mark)

    def passed(self, mark: Mark) -> float:
        """When the device came to `mark`, which it has: seconds of `time.perf_counter`."""
        if isinstance(mark, float):
            return mark
        if self._start is None:
            return time.perf_counter()
        milliseconds: float = self._start.elapsed_time(mark)
        return self._started + milliseconds / 1000
