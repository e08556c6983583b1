"""The memory that a peer may use on its machine, from the options of the volunteer."""

from __future__ import annotations

from collections.abc import Sequence

from peers.runtime.device import memory_budget
from peers.stage.machine import Budgets
from swarm.compute.memory_table import Mode


def budgets(device: str, devices: Sequence[str], limit: int | None, graphs: int | None, changes: int | None) -> Budgets:
    """The memory budgets, in bytes, of one of a process's `devices`.

    A graphics card has its own memory. The memory of the host is divided among the devices.

    `limit`: of each device's memory, or of the host's memory for all peers on the host; None: the free memory.
    `graphs`, `changes`: for each device, as in Budgets.
    """
    memory, host = memory_budget(limit, device), None
    if Mode(device).own_memory:
        host = memory_budget(None, "cpu") // len(devices)
    else:
        memory //= sum(not Mode(each).own_memory for each in devices)
    beside = memory if host is None else host
    return Budgets(memory, beside // 4, graphs, beside // 8 if changes is None else changes, host, limit is not None)
