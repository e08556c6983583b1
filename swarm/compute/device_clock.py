"""Times at which a device finished its work, on the host's clock, measured without waiting for the device."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


class DeviceClock:
    """The clock of the compute thread's stream.

    On a CPU, work is done when it is submitted: a mark is the time itself.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self.asynchronous = self._cuda
        """Whether the device computes asynchronously to the host."""
        self._start: torch.cuda.Event | None = None
        self._started = 0.0

    def set(self) -> None:
        """Synchronise both clocks. Call it from time to time, because they drift. Waits for the device."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
            self._start = self._recorded(torch.cuda.Event(enable_timing=True))
            self._start.synchronize()
            self._started = time.perf_counter()

    def mark(self) -> Mark:
        """A mark behind all work that was submitted so far."""
        if not self._cuda:
            return time.perf_counter()
        return self._recorded(torch.cuda.Event(enable_timing=True, blocking=True))

    def wait(self, mark: Mark) -> float:
        """Wait until the device has reached `mark`. Returns the time at which it did, as `passed` does."""
        if not isinstance(mark, float) and not mark.query():
            mark.synchronize()
        return self.passed(mark)

    def passed(self, mark: Mark) -> float:
        """The time at which the device reached `mark`, in seconds of `time.perf_counter`. It must have been reached."""
        if isinstance(mark, float):
            return mark
        if self._start is None:
            return time.perf_counter()
        milliseconds: float = self._start.elapsed_time(mark)
        return self._started + milliseconds / 1000

    def _recorded(self, event: torch.cuda.Event) -> torch.cuda.Event:
        with torch.cuda.device(self._device):  # else it would be recorded on the first card
            event.record()
        return event
