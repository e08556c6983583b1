"""What a peer may use of its machine's memory, by the options of the person who joins."""

from __future__ import annotations

from collections.abc import Sequence

from peers.runtime.device import memory_budget
from peers.stage.machine import Budgets
from swarm.compute.memory_table import Mode


def budgets(device: str, devices: Sequence[str], limit: int | None, graphs: int | None, changes: int | None) -> Budgets:
    """The bytes of one of a process's `devices`: the memory of a card is its own, that of the host is divided.

    `limit`: of each device's memory, or of the host's for all peers there; None: what is free. `graphs`, `changes`: as
    in Budgets, of each.
    """
    memory, host = memory_budget(limit, device), None
    if Mode(device).own_memory:
        host = memory_budget(None, "cpu") // len(devices)
    else:
        memory //= sum(not Mode(each).own_memory for each in devices)
    beside = memory if host is None else host
    return Budgets(memory, beside // 4, graphs, beside // 8 if changes is None else changes, host, limit is not None)
