"""A stage whose state is in the host's memory: the same bits, its memory against the table, and the time of a step."""

from __future__ import annotations

import gc
from functools import partial

import torch

from benchmarks.gpu.caps import MICROBATCHES, Cap, capped, run
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.memory import SHAPES, SMOKE, at_rest, host_bytes, own_sums, within
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.workload import MIDDLE, PASS, bodies_of, fill, run_of
from peers.run.capacity import MiddleStage
from swarm.compute.graph import count_stages
from swarm.compute.memory_table import Mode, stage_memory
from swarm.compute.precision import Precision
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.manifest import RunManifest
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.peer.io import Backward, Forward
from swarm.protocol.update import update_of

GIGABYTES = 8


def measure(lab: Lab) -> Found:
    """Bits of a step with and without offload; bytes and nanoseconds per parameter; the largest stage for a card."""
    dim, ffn, layers, rows, length = (SMOKE if lab.smoke else SHAPES)[0]
    manifest = run_of(dim, ffn, layers, rows, length, subspace_dim=dim // 16)
    mode = Mode("cuda", Precision.usual(lab.device).value, offload=True)  # a CPU stands for a card in the smoke run
    counts = count_stages(manifest, mode, by_layer=False)[MIDDLE]
    table = stage_memory(manifest, counts, mode)
    figures: dict[str, object] = {}
    digests = []
    for offload in (False, True):
        lab.tidy()
        with lab.counted() as allocated:
            stage = _stage(lab, manifest, offload)
            beside = host_bytes(lab, stage) if offload else 0
            resident = allocated.now - beside
            _train(stage, manifest)
            reduced = own_sums(stage)
            update = update_of(manifest.optimizer, 0, manifest.run.steps)
            apply = partial(stage.optimizer.apply, reduced, 1e-6, update, unit=stage.reduction.unit, digest="ab" * 32)
            allocated.new_peak()
            apply()
            stage.loaded()
            in_step = allocated.peak - beside
        digests.append((stage.optimizer.digest(), stage.optimizer.checksum()))
        name = "offload" if offload else "plain"
        figures[f"{name}_resident"] = round(resident / counts.parameters, 2)
        figures[f"{name}_in_step"] = round(in_step / counts.parameters, 2)
        for what, work in (("apply", apply), ("refresh", stage.loaded), ("checksum", stage.optimizer.checksum)):
            figures[f"{name}_{what}_ns"] = round(lab.median(work, 3, 1) / counts.parameters * 1e9, 3)
        del stage, reduced, apply, work
        gc.collect()
    figures["table_resident"] = round(at_rest(table) / counts.parameters, 2)
    figures["table_in_step"] = round((at_rest(table) + table.updating) / counts.parameters, 2)
    cap = Cap(GIGABYTES * (10**6 if lab.smoke else 10**9))
    largest = capped(lab, MiddleStage(partial(run, lab), mode), cap, by_layer=True, offload=True)
    figures["largest"] = largest
    aims = [
        Aim.holds("state after a step with offload equals that without", digests[0] == digests[1]),
        within("resident with offload: measured ÷ table", figures["offload_resident"], figures["table_resident"]),  # type: ignore[arg-type]
        Aim.holds("the largest stage for 8 GB with offload trains", largest["trained"]),
    ]
    if largest["trained"] is True:
        aims.append(within("its peak: measured ÷ table", float(largest["peak"]), float(largest["table"])))  # type: ignore[arg-type]
    return Found(figures, tuple(aims))


def _stage(lab: Lab, manifest: RunManifest, offload: bool) -> Stage:
    stage = Stage(manifest, MIDDLE, StageOptions(str(lab.device), 1 << 40, offload=offload), initialised=False)
    torch.manual_seed(0)
    fill({name: parameter for name, parameter in stage.parameters.items() if parameter.ndim == 1})
    for name, parameter in stage.parameters.items():
        if parameter.ndim > 1:  # the same values in both memories
            generator = torch.Generator().manual_seed(len(name))
            parameter.detach().copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    stage.loaded()
    return stage


def _train(stage: Stage, manifest: RunManifest) -> None:
    bodies = bodies_of(manifest)
    for number in range(MICROBATCHES):
        stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), bodies[0]))
        stage.backward(Backward(PASS, Microbatch(number), bodies[1]))
