"""The offer: what this machine can do for the run, stored or measured, and whether it computes correctly."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from peers.run.home import OpenHome
from peers.runtime.link_probe import probe_link
from peers.stage.means import MeansFile
from peers.stage.options import JoinOptions
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.self_test import rounds_alike
from swarm.events import EventLog, MachineMeasured, RoundsOtherwise
from swarm.manifest import RunManifest
from swarm.net.network import Network
from swarm.protocol.ids import Actor


class MachineError(ValueError):
    """This machine cannot take part in the run; the message says why."""


class MachineOffer(NamedTuple):
    """What a whole machine offers: microbatches/s through the whole model, bytes/s up and down."""

    capacity: float
    up: float | None
    down: float | None


async def measured_offer(
    manifest: RunManifest, home: OpenHome, options: JoinOptions, network: Network, coordinator: Actor, log: EventLog
) -> MachineOffer:
    """What this machine offers, as stored in the home or measured now. Raises MachineError."""
    kept, limit = MeansFile(options.means_file or home.means), options.machine.max_rate
    link = kept.link(coordinator.peer)
    if link is None and options.capacity is None:  # a given capacity lets the peer start without the probe
        link = kept.keep_link(coordinator.peer, *await probe_link(network.bulk, coordinator, up=limit is None))
    up, down = (None, None) if link is None else (link.up, link.down)
    if limit is not None:
        up = float(limit)
    speed, capacity, measured = None, options.capacity, False
    if capacity is None and options.pace is not None:
        capacity = options.pace.capacity(manifest.model.stages)
    elif capacity is None:
        try:
            speed, measured = await asyncio.to_thread(
                kept.speed,
                manifest,
                Arithmetic.of(options.device, options.threads, options.precision, options.compiled),
                options.machine.budgets.memory,
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise MachineError(
                f"--device {options.device} cannot compute a microbatch of this run ({reason}): try another device, or "
                "another machine"
            ) from None
        capacity = speed.capacity
    forward_s, backward_s = (None, None) if speed is None else (speed.forward_s, speed.backward_s)
    memory = options.machine.memory_for_states
    log.append(MachineMeasured(options.device, capacity, forward_s, backward_s, memory, up, down, kept=not measured))
    return MachineOffer(capacity, up, down)


def updates_here(device: str, log: EventLog) -> bool:
    """True if `device` computes optimizer steps exactly. Raises MachineError if the processor does not either."""
    if rounds_alike(device):
        return True
    if device == "cpu" or not rounds_alike("cpu"):
        raise MachineError(
            "this machine's results differ from those of all other machines in some bits, so a replica on it would "
            "differ from its siblings; the machine may be broken, or may round very small numbers to zero"
        )
    log.append(RoundsOtherwise(device))
    return False
