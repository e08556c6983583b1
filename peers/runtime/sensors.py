"""Sensors of the device that computes: its temperature, and which other programs compute on it.

A graphics card of NVIDIA is read through NVML (the package `nvidia-ml-py`, an extra). The temperature may also come
from a file, as Linux has for most processors and cards under /sys/class/hwmon.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

BUSY_PERCENT = 10
"""Per cent of the card's time. A program that takes less does not count, because every desktop draws all the time."""
SHARED_S = 0.9
"""Seconds for which the peers of a device share a reading. Each reads once a second, so a lone peer always gets a new
one.
"""
_LONGEST_FILE = 64
_LEAST_C, _MOST_C = -50.0, 250.0


class SensorError(ValueError):
    """A sensor that this machine does not have, or that does not answer; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The values that a sensor has read. `celsius` None: not requested. `others`: the other programs that compute on
    the device; empty if there are none, or if they were not requested.
    """

    celsius: float | None = None
    others: str = ""


class Sensor(Protocol):
    """A sensor of the device. It may be read from any thread, once a second."""

    def read(self) -> Reading:
        """Read the sensor. Raises SensorError."""


def pick_sensor(device: str, *, temperature: bool, others: bool, file: Path | None = None) -> Sensor:
    """A sensor of `device` that reads the requested values, for all peers of the device. It is read once as a test.
    Raises SensorError.

    `file`: a file that contains the temperature in thousandths of a degree Celsius.
    """
    card = device.startswith("cuda")
    if others and not card:
        raise SensorError(
            f"--pause-when-busy is for NVIDIA cards, and this peer computes on {device}: there the operating system "
            "shares the cores; start the peer with `nice -n 19` to let other programs go first"
        )
    if temperature and not card and file is None:
        raise SensorError(
            f"--max-temp: the temperature of {device} cannot be read automatically: name its file with --temp-file, "
            "such as /sys/class/hwmon/hwmon0/temp1_input"
        )
    asks_card = others or file is None
    nvidia = NvidiaCard(device, temperature=temperature and file is None, others=others) if asks_card else None
    sensor = Shared(_Both(None if file is None else TemperatureFile(file), nvidia))
    sensor.read()
    return sensor


@dataclass(frozen=True, slots=True)
class TemperatureFile:
    """A text file with the temperature in thousandths of a degree Celsius, as in Linux's hwmon."""

    path: Path

    def read(self) -> Reading:
        try:
            with self.path.open("rb") as opened:
                text = opened.read(_LONGEST_FILE)
            celsius = int(text) / 1000
        except (OSError, ValueError) as error:
            raise SensorError(
                f"no temperature in {self.path} ({error}): the file must contain thousandths of °C, as in Linux"
            ) from None
        if not _LEAST_C < celsius < _MOST_C:
            raise SensorError(
                f"{self.path} says {celsius:g} °C: the file must contain thousandths of °C, such as 83000"
            )
        return Reading(celsius)


class NvidiaCard:
    """An NVIDIA card, read through NVML. Raises SensorError if there is none, or if it does not give the requested
    values.
    """

    def __init__(self, device: str, *, temperature: bool, others: bool, nvml: Any = None, uuid: str = "") -> None:
        """`nvml`: the module pynvml; None: the installed one. `uuid`: the UUID of the card; None: the card that torch
        uses.
        """
        self._nvml = nvml = nvml or _installed()
        self._temperature, self._others = temperature, others
        self._seen_at = 0
        """Time stamp of the newest sample of other programs' use, microseconds."""
        try:
            nvml.nvmlInit()
            self._card = nvml.nvmlDeviceGetHandleByUUID(uuid or _uuid(device))
        except nvml.NVMLError as error:
            raise SensorError(f"NVML does not know the card {device} ({error}): is NVIDIA's driver loaded?") from None
        if others and os.getpid() not in self._asked(self._pids):
            raise SensorError(
                f"--pause-when-busy: NVML does not list this process ({os.getpid()}) on {device}, so it cannot tell "
                "other programs from it. In a container, start that with --pid=host"
            )

    def read(self) -> Reading:
        celsius = float(self._asked(self._celsius)) if self._temperature else None
        return Reading(celsius, self._asked(self._busy) if self._others else "")

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError as error:
            raise SensorError(f"the card does not answer NVML: {error}") from None

    def _celsius(self) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(self._card, self._nvml.NVML_TEMPERATURE_GPU))

    def _pids(self) -> list[int]:
        return [each.pid for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card)]

    def _busy(self) -> str:
        """The other programs that use a part of the card's time. If the card does not report shares, all programs that
        compute on it.
        """
        nvml, own = self._nvml, os.getpid()
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._card, self._seen_at)
        except nvml.NVMLError_NotFound:
            return ""  # nothing was used since
        except nvml.NVMLError_NotSupported:
            return _named({pid for pid in self._pids() if pid != own})
        self._seen_at = max((each.timeStamp for each in samples), default=self._seen_at)
        return _named({each.pid for each in samples if each.pid != own and each.smUtil >= BUSY_PERCENT})


@dataclass(frozen=True, slots=True)
class _Both:
    """The temperature from a file, if one is given, and all other values from the card."""

    file: TemperatureFile | None
    card: NvidiaCard | None

    def read(self) -> Reading:
        told = Reading() if self.card is None else self.card.read()
        return told if self.file is None else Reading(self.file.read().celsius, told.others)


class Shared:
    """A sensor that several peers read. A card reports each sample of its use to one read only, so a reading of the
    last SHARED_S seconds is given to all of them.
    """

    def __init__(self, sensor: Sensor, clock: Callable[[], float] = time.monotonic) -> None:
        self._sensor, self._clock = sensor, clock
        self._lock = threading.Lock()
        self._latest: tuple[float, Reading] | None = None
        """When the sensor was asked, in seconds of the clock, and what it answered."""

    def read(self) -> Reading:
        with self._lock:
            asked = self._clock()
            if self._latest is None or asked - self._latest[0] >= SHARED_S:
                self._latest = asked, self._sensor.read()
            return self._latest[1]


def _named(pids: set[int]) -> str:
    if not pids:
        return ""
    first, more = min(pids), len(pids) - 1
    return f"process {first}" + (f" and {more} more" if more else "")


def _uuid(device: str) -> str:
    """Return the card's UUID. NVML and torch number cards differently; both know the UUID."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _installed() -> Any:
    try:
        return import_module("pynvml")
    except ImportError:
        raise SensorError(
            "NVIDIA's management library for Python is missing: pip install nvidia-ml-py (or swarm-peer[nvidia])"
        ) from None
