"""How much this process uses its machine, and a description of the machine, as far as it can be read without special
rights.
"""

from __future__ import annotations

import contextlib
import platform
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from swarm.cores import usable_cores
from swarm.net.wire_bounds import MAX_LABEL
from swarm.protocol.messages import Figure, Trait

_TEMPERATURE_EVERY_S = 5.0
"""Sensors are read at this interval only, because some take milliseconds."""


class Usage:
    """The use of the machine by one process. Call `read` once a step, in the event loop: it takes less than a
    millisecond.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._process = psutil.Process()
        self._cpu_s = time.process_time()
        self._at = time.perf_counter()
        self._sensed: tuple[Figure, ...] = ()
        self._sensed_at = float("-inf")

    def read(self) -> tuple[Figure, ...]:
        """The number of cores used since the last reading, memory in bytes, and sensor values."""
        now, cpu_s = time.perf_counter(), time.process_time()
        cores = (cpu_s - self._cpu_s) / max(now - self._at, 1e-3)
        self._at, self._cpu_s = now, cpu_s
        figures = [Figure("cpu", max(0.0, cores)), Figure("resident", float(self._process.memory_info().rss))]
        if self._device.type == "cuda":
            figures.append(Figure("gpu_memory", float(torch.cuda.memory_reserved(self._device))))
        if now - self._sensed_at >= _TEMPERATURE_EVERY_S:
            self._sensed, self._sensed_at = self._sense(), now
        return (*figures, *self._sensed)

    def _sense(self) -> tuple[Figure, ...]:
        """The values of the graphics card's sensors if NVML is installed. Otherwise the temperature of the processor's
        hottest sensor.
        """
        if self._device.type == "cuda":
            with contextlib.suppress(Exception):  # NVML is missing, or does not support this card
                celsius = float(torch.cuda.temperature(self._device))
                return Figure("temperature", celsius), Figure("power", torch.cuda.power_draw(self._device) / 1000)
            return ()
        try:
            read = psutil.sensors_temperatures()
        except (AttributeError, OSError, ValueError):  # this system has no sensors
            return ()
        found = [each.current for name in _OF_PROCESSORS for each in read.get(name, ()) if each.current is not None]
        return (Figure("temperature", max(found)),) if found and max(found) > 0 else ()


_OF_PROCESSORS = ("coretemp", "k10temp", "cpu_thermal", "zenpower", "acpitz")


def machine_traits(device: str, threads: int, memory: int, process: str) -> tuple[Trait, ...]:
    """The description of this machine. `memory`: bytes to plan with. `process`: a name that all peers of a process
    share.
    """
    traits = [
        Trait("device", device),
        Trait("processor", _processor()),
        Trait("cores", "", usable_cores()),
        Trait("threads", "", float(threads)),
        Trait("memory", "", float(memory)),
        Trait("system", f"{platform.system()} {platform.release()}"),
        Trait("release", version("swarm-peer")),
        Trait("process", process),
    ]
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        traits += [Trait("gpu", properties.name), Trait("gpu_memory", "", float(properties.total_memory))]
    return tuple(Trait(trait.name, trait.text[:MAX_LABEL], trait.number) for trait in traits)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
