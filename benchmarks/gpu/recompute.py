"""What recomputing the layers costs: time and memory of a microbatch, against graphs that are kept whole."""

from __future__ import annotations

import gc

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.workload import MIDDLE, bodies_of, compute_one, fill, run_of
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions

MOST = 1.4
"""A backward is as long as two forwards, and recomputing adds one: 4/3, and some launches."""


def measure(lab: Lab) -> Found:
    figures: dict[str, dict[str, float]] = {}
    shapes = ((64, 176, 3, 2, 64),) if lab.smoke else ((2048, 5632, 8, 2, 2048), (4096, 11008, 4, 1, 8192))
    aims = []
    for dim, ffn, layers, rows, length in shapes:
        manifest = run_of(dim, ffn, layers, rows, length, subspace_dim=dim // 16)
        bodies = bodies_of(manifest)
        row: dict[str, float] = {}
        for by_layer in (False, True):
            options = StageOptions(str(lab.device), 1 << 40, recomputes_layers=by_layer)
            stage = Stage(manifest, MIDDLE, options, initialised=False)
            fill(stage.parameters)
            stage.loaded()
            way = "by_layer" if by_layer else "whole"

            def one(stage: Stage = stage, bodies: tuple[object, object] = bodies) -> None:
                stage.begin()
                compute_one(stage, bodies)  # type: ignore[arg-type]

            row[f"{way}_ms"] = round(1e3 * lab.median(one, 7, 2), 3)
            with lab.counted() as allocated:
                one()
                row[f"{way}_bytes"] = allocated.peak
            del stage, one
            gc.collect()
        row["time"] = round(row["by_layer_ms"] / row["whole_ms"], 3)
        row["memory"] = round(row["by_layer_bytes"] / row["whole_bytes"], 3)
        name = f"{layers} layers of {dim}, {rows} × {length} tokens"
        figures[name] = row
        aims.append(Aim.at_most(f"{name}: time with layers recomputed ÷ without", MOST, row["time"]).of(lab))
    return Found(figures, tuple(aims))
