"""Memory of a stage by phase, against the memory table."""

from __future__ import annotations

import gc

from torch import Tensor

from benchmarks.gpu.lab import Allocated, Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.workload import ATTEMPT, MIDDLE, PASS, bodies_of, run_of, stage_of
from swarm.compute.graph import count_stages
from swarm.compute.memory_table import Mode, StageMemory, stage_memory
from swarm.compute.precision import Precision
from swarm.compute.reduction import Buckets
from swarm.compute.stage import Stage
from swarm.manifest import RunManifest
from swarm.models.kinds import count_parameters
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.peer.io import Backward, Forward, SumBucket
from swarm.protocol.update import update_of

TOLERANCE = 0.10
GRAPHS = 4
# dim, ffn, layers, sequences, length
SHAPES = ((2048, 5632, 8, 1, 512), (2048, 5632, 8, 2, 2048))
SMOKE = ((64, 160, 4, 2, 128), (128, 352, 3, 1, 64))


def measure(lab: Lab) -> Found:
    """Bytes per parameter that are allocated at most, by phase, and the same from the table."""
    shapes = SMOKE if lab.smoke else SHAPES
    figures: dict[str, dict[str, float]] = {}
    for dim, ffn, layers, rows, length in shapes:
        manifest = run_of(dim, ffn, layers, rows, length, subspace_dim=dim // 16)
        name = f"{layers} layers of {dim}, {rows} × {length} tokens"
        figures[name] = _row(lab, manifest)
        lab.tidy()
    aims = []
    for name, row in figures.items():
        for what in ("resident", "graph", "backward"):
            aims.append(within(f"{name}: {what}: measured ÷ table", row[what], row[f"table_{what}"]))
    return Found(figures, tuple(aims))


def within(what: str, measured: float, planned: float) -> Aim:
    """That the measured memory is within TOLERANCE of the planned one."""
    ratio = round(measured / planned, 3)
    return Aim(what, f"1 ± {TOLERANCE:g}", ratio, abs(ratio - 1) <= TOLERANCE)


def _row(lab: Lab, manifest: RunManifest) -> dict[str, float]:
    parameters = count_parameters(manifest.model, MIDDLE)
    bodies = bodies_of(manifest)
    found: dict[str, float] = {}
    with lab.counted() as allocated:
        stage = stage_of(lab, manifest)
        found["resident"] = allocated.now
        for number in range(GRAPHS):
            stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), bodies[0]))
        found["graph"] = (allocated.now - found["resident"]) / GRAPHS
        assert stage._graphs._graph_bytes is not None, "a graph was measured"
        found["told_graph"] = stage._graphs._graph_bytes
        allocated.new_peak()
        stage.backward(Backward(PASS, Microbatch(0), bodies[1]))
        found["backward"] = allocated.peak
        for number in range(1, GRAPHS):
            stage.backward(Backward(PASS, Microbatch(number), bodies[1]))
        found["apply"] = step(stage, manifest, allocated)
        del stage
        gc.collect()
    table = planned(lab, manifest)
    found["table_resident"] = at_rest(table)
    found["table_graph"] = table.graph
    found["table_backward"] = at_rest(table) + GRAPHS * table.graph + table.in_backward
    return {phase: round(value / parameters, 2) for phase, value in found.items()}


def step(stage: Stage, manifest: RunManifest, allocated: Allocated) -> int:
    """Apply a step of the stage's own sums. Returns the most bytes that were allocated meanwhile."""
    allocated.new_peak()
    reduced = own_sums(stage)
    update = update_of(manifest.optimizer, stage.optimizer.version, manifest.run.steps)
    stage.optimizer.apply(reduced, 1e-6, update, unit=stage.reduction.unit)
    return allocated.peak


def own_sums(stage: Stage) -> Tensor:
    """The stage's own sums in its reduced vector, as a sole replica reduces them."""
    reduction = stage.reduction
    for bucket in range(Buckets(stage._accumulator.layout, reduction._sums).count):
        reduction.store(ATTEMPT, bucket, reduction.sum(SumBucket(ATTEMPT, bucket, ())))
    return reduction.reduced(ATTEMPT)


def host_bytes(lab: Lab, stage: Stage) -> int:
    """Bytes that `Allocated` counts although a stage with offload has them in the host's memory. They are counted only
    if the device is a CPU, and so is the memory with which a CPU adds up gradients.
    """
    if lab.cuda:
        return 0
    held = stage.reduction._held
    tensors = [*stage.optimizer._live().values(), *stage._accumulator._scratch, *([] if held is None else [held])]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


def planned(lab: Lab, manifest: RunManifest) -> StageMemory:
    """The table for the middle stage on the lab's device, in its usual precision."""
    mode = Mode(str(lab.device), Precision.usual(lab.device).value)
    return stage_memory(manifest, count_stages(manifest, mode, by_layer=False)[MIDDLE], mode)


def at_rest(table: StageMemory) -> int:
    """Bytes that are always allocated while all sums fit into 32 bits."""
    return table.resident - table.accumulator // 2
