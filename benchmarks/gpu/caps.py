"""Capacities: the largest stage that the memory table finds for a card of 8, 12 or 24 GB, trained within that memory.

The allocator of torch is told the capacity (`set_per_process_memory_fraction`), so more is an error, as on such a card.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.lab import Allocated, Lab
from benchmarks.gpu.memory import at_rest, host_bytes, step, within
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.workload import MIDDLE, PASS, bodies_of, fill, run_of
from peers.run.capacity import MiddleStage, usable
from swarm.compute.memory_table import Mode, StageMemory
from swarm.compute.precision import Precision
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.manifest import RunManifest
from swarm.models.kinds import count_parameters
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.peer.io import Backward, Forward

GIGABYTES = (8, 12, 24)
MICROBATCHES = 2


@dataclass(frozen=True, slots=True)
class Cap:
    """The memory of a card: `total` bytes, of which a peer plans with `room`."""

    total: int

    @property
    def room(self) -> int:
        return usable(self.total)


def measure(lab: Lab) -> Found:
    """For each capacity: the largest stage in layers and parameters, and whether it trains within the capacity."""
    figures: dict[str, object] = {}
    aims: list[Aim] = []
    table = MiddleStage(partial(run, lab), Mode(str(lab.device), Precision.usual(lab.device).value))
    for gigabytes in GIGABYTES:
        cap = Cap(gigabytes * (10**6 if lab.smoke else 10**9))
        name = f"{gigabytes} {'MB' if lab.smoke else 'GB'}"
        if lab.cuda and cap.total > (have := torch.cuda.get_device_properties(lab.device).total_memory):
            aims.append(Aim.cannot(f"a stage for {name} trains", "true", f"the card has {have / 1e9:.1f} GB"))
            continue
        for by_layer in (False, True):
            way = "layers recomputed" if by_layer else "whole graphs"
            figures[f"{name}, {way}"] = row = capped(lab, table, cap, by_layer)
            aims.append(Aim.holds(f"{name}, {way}: the largest stage trains", row["trained"]))
            if row["trained"] is True:
                ratio = float(row["peak"]), float(row["table"])  # type: ignore[arg-type]
                aims.append(within(f"{name}, {way}: measured ÷ table", *ratio))
    return Found(figures, tuple(aims))


def run(lab: Lab, layers: int) -> RunManifest:
    """The run of the table in docs/gpu.md: layers of 2,048 with a subspace of 128, 4,096 tokens a microbatch."""
    if lab.smoke:
        return run_of(64, 176, layers, 2, 64, subspace_dim=4)
    return run_of(2048, 5632, layers, 2, 2048, subspace_dim=128)


def capped(lab: Lab, memory: MiddleStage, cap: Cap, by_layer: bool, offload: bool = False) -> dict[str, object]:
    """Train the largest stage that fits. Returns whether it trained, and its peak."""
    layers = memory.largest(cap.room, by_layer, offload)
    if not layers:
        return {"layers": 0, "trained": "not even one layer fits"}
    manifest = run(lab, layers)
    table = memory.memory(layers, by_layer, offload)
    row: dict[str, object] = {"layers": layers, "parameters": count_parameters(manifest.model, MIDDLE)}
    lab.tidy()
    if lab.cuda:
        total = torch.cuda.get_device_properties(lab.device).total_memory
        torch.cuda.set_per_process_memory_fraction(cap.total / total, lab.device)
    try:
        with lab.counted() as allocated:
            row["peak"] = _trained(lab, manifest, cap.room - table.device, by_layer, allocated, offload)
        row["trained"] = True
    except torch.OutOfMemoryError as error:
        row["trained"] = str(error)[:200]
    finally:
        gc.collect()
        if lab.cuda:
            torch.cuda.set_per_process_memory_fraction(1.0, lab.device)
    row["table"] = at_once(lab, table)
    row["room"] = cap.room
    return row


def at_once(lab: Lab, table: StageMemory) -> int:
    """The table's peak of a peer whose sums fit into 32 bits, and which computes one microbatch after the other; of a
    CPU, in the microbatches.
    """
    reduced = 0 if table.reduces_on_host else table.reduced
    in_step = reduced + table.updating if lab.cuda else 0
    return at_rest(table) + max(table.graph + table.in_backward, in_step)


def _trained(lab: Lab, manifest: RunManifest, graphs: int, by_layer: bool, allocated: Allocated, offload: bool) -> int:
    """Train a step. Returns the most bytes that were allocated; on a CPU, which keeps the reduced vector of a real
    reduction all the time, those in the microbatches.
    """
    options = StageOptions(str(lab.device), max(0, graphs), recomputes_layers=by_layer, offload=offload)
    stage = Stage(manifest, MIDDLE, options, initialised=False)
    beside = host_bytes(lab, stage) if offload else 0
    fill(stage.parameters)
    stage.loaded()
    bodies = bodies_of(manifest)
    allocated.new_peak()
    for number in range(MICROBATCHES):
        stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), bodies[0]))
        stage.backward(Backward(PASS, Microbatch(number), bodies[1]))
    in_microbatches, in_step = allocated.peak, step(stage, manifest, allocated)
    return max(in_microbatches, in_step) if lab.cuda else in_microbatches - beside
