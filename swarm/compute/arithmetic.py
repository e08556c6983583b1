"""How a machine computes: everything except the model on which its speed depends."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from swarm.compute.memory_table import Mode
from swarm.compute.precision import Precision


@dataclass(frozen=True, slots=True)
class Arithmetic:
    device: str
    threads: int
    precision: Precision
    compiled: bool

    @classmethod
    def of(cls, device: str, threads: int, precision: Precision | None = None, compiled: bool = False) -> Arithmetic:
        """`precision` None: the default precision of the device."""
        return cls(device, threads, precision or Precision.usual(torch.device(device)), compiled)

    @property
    def mode(self) -> Mode:
        return Mode(self.device, self.precision.value)

    def __str__(self) -> str:
        """A description with the hardware, for people and as a key of stored measurements."""
        cuda = self.device.startswith("cuda")
        processor = f"{platform.machine()} {platform.processor()}".strip()
        hardware = torch.cuda.get_device_name(self.device) if cuda else processor
        compiled = ", compiled" if self.compiled else ""
        return f"{hardware}, {self.device}, {self.precision.value}{compiled}, {self.threads} threads"
