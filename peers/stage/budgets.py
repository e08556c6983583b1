"""The memory that a peer may use on its machine, from the options of the volunteer and the needs of the stages."""

from __future__ import annotations

from collections.abc import Sequence

from peers.run.dry_run import StageNeed
from peers.runtime.device import memory_budget
from peers.stage.machine import Budgets
from peers.stage.offer import MachineError
from swarm.compute.memory_table import Mode
from swarm.events.wording import amount


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


def memory_for_states(needs: Sequence[StageNeed], budgets: Budgets) -> int:
    """Bytes of a card's memory that stages may take with offload, so that the host's memory suffices for them too.

    Coordinators know only the need on the card. So the part that the host's memory allows is that of the stage that
    needs most of it for each byte on the card; then it suffices for several stages too. Raises MachineError if no stage
    fits into the host's memory.
    """
    fitting = [need.least for need in needs if need.least.device <= budgets.memory]
    if budgets.host is None or not fitting:
        return budgets.memory
    ratio = max(memory.host / memory.device for memory in fitting)
    states, smallest = min(budgets.memory, int(budgets.host / ratio)), min(memory.device for memory in fitting)
    if smallest > states:
        raise MachineError(
            f"--offload: a stage of this run needs up to {amount(smallest * ratio)} of the host's memory, and this "
            f"peer may use {amount(budgets.host)}, half of what is free: close other programs, leave out --offload, or "
            "cut the model into more stages (model.cuts)"
        )
    return states
