"""What of a device a peer's engine puts to use: microbatches one after another, from received bodies to packed ones.

    python -m benchmarks.gpu_pipeline [--device cuda] [--out FILE]
    python -m benchmarks.gpu_pipeline --device cpu --smoke      # the same at a small size

A middle stage gets forwards, each followed by its backward, with at most four microbatches between the two, as in a
swarm whose links never wait. Columns:

* whole_ms: seconds of all that by microbatches. `share` is that of the device's measured matrix rate which the model's
  FLOP need: 6 a parameter and token, and attention's.
* core_ms: forward and backward of the same module alone, as many in a row, without bodies, sums or the engine.
* alone_ms: the whole module under torch.compile, its matrices in half precision: what a training script would get.
* idle: share of the time in which the device had work and did nothing.
* waits: how often the host waited for the device, a microbatch (forward and backward).
* peak_bytes: most that was allocated, a parameter.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import MIDDLE, PASS, Lab, _bodies, _fill, _manifest
from benchmarks.results import write_results
from swarm.compute.engine import StageEngine
from swarm.compute.precision import Precision
from swarm.compute.stage import Stage
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage, count_parameters
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.peer.io import Backward, BackwardDone, Begin, ComputeFailed, Forward, ForwardDone, PeerInput

IN_FLIGHT = 4
SHAPES = (
    # dim, ffn, layers, sequences, length, subspace
    (2048, 5632, 5, 4, 2048, 128),
    (2048, 5632, 5, 4, 2048, 0),
    (4096, 14336, 2, 4, 2048, 128),
    (1024, 2816, 8, 4, 512, 128),
)
SMOKE = ((64, 160, 2, 2, 32, 16), (64, 160, 2, 2, 32, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which no further row begins")
    parser.add_argument("--rows", type=int, default=len(SHAPES), help="so many shapes, from the first")
    parser.add_argument("--eager", action="store_true", help="nothing is compiled")
    parser.add_argument("--alone", action="store_true", help="the compiled module alone, too")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lab = Lab(torch.device(options.device), options.smoke)
    lab.matrix_rate()
    deadline = time.monotonic() + options.limit
    rows: list[dict[str, Any]] = []
    for shape in (SMOKE if options.smoke else SHAPES)[: options.rows]:
        row: dict[str, Any] = dict(zip(("dim", "ffn", "layers", "sequences", "length", "subspace"), shape, strict=True))
        rows.append(row)
        if time.monotonic() > deadline:
            row["skipped"] = "out of time"
            continue
        lab.tidy()
        try:
            for compiled in (False,) if options.eager else (False, True):
                row["compiled" if compiled else "eager"] = _row(lab, _manifest(*shape), options, compiled)
            if options.alone and not options.eager:
                row["alone_ms"] = round(1e3 * _alone(lab, _manifest(*shape)), 3)
                row["core_of_alone"] = round(row["alone_ms"] / row["compiled"]["core_ms"], 3)
        except Exception as error:
            traceback.print_exc()
            row["failed"] = f"{type(error).__name__}: {error}"[:400]
        print(json.dumps(row), flush=True)
        write_results(
            options.out, "gpu_pipeline", device=lab.name, teraflop=lab.peak, torch=torch.__version__, rows=rows
        )


def _row(lab: Lab, manifest: RunManifest, options: argparse.Namespace, compiled: bool) -> dict[str, object]:
    parameters = count_parameters(manifest.model, MIDDLE)
    batch, layers = manifest.batch, manifest.model.layers - 2
    tokens = batch.sequences * batch.sequence_length
    flop = 6 * parameters * tokens + 6 * layers * manifest.model.dim * batch.sequence_length * tokens
    start = time.monotonic()
    line = _Line(lab, manifest, compiled)
    found: dict[str, object] = {"parameters": parameters, "ready_s": round(time.monotonic() - start, 1)}
    try:
        line.run(IN_FLIGHT + 1)
        if lab.cuda:
            torch.cuda.reset_peak_memory_stats()
        rounds = sorted((line.run(options.microbatches) for _ in range(options.rounds)), key=lambda each: each[0])
        whole, busy = rounds[len(rounds) // 2]
        whole /= options.microbatches
        found["whole_ms"] = round(1e3 * whole, 3)
        found["spread"] = round((rounds[-1][0] - rounds[0][0]) / rounds[len(rounds) // 2][0], 3)
        found["idle"] = round(1 - busy / (whole * options.microbatches), 4)
        if lab.cuda:
            found["peak_bytes"] = round(torch.cuda.max_memory_allocated() / parameters, 2)
            found["waits"] = _waits(lab, line)
        # as many in a row, of numbers as random: a card that is never idle or multiplies zeros has another clock
        core = lab.median(partial(_cores, line.stage, manifest, options.microbatches), options.rounds, 1)
        core /= options.microbatches
        found["core_ms"] = round(1e3 * core, 3)
        found["whole_of_core"] = round(core / whole, 3)
        for name, seconds in (("whole", whole), ("core", core)):
            found[f"share_{name}"] = round(flop / seconds / 1e12 / lab.peak, 4)
    finally:
        line.close()
    return found


class _Filled(StageEngine):
    """With values drawn on the device: seeded ones take a core most of a minute at these sizes."""

    def _build(self, initialised: bool) -> Stage:
        stage = super()._build(False)
        _fill(stage.parameters)
        stage.loaded()
        return stage


class _Line:
    """An engine and what its neighbours would send it."""

    def __init__(self, lab: Lab, manifest: RunManifest, compiled: bool) -> None:
        self._told: queue.SimpleQueue[PeerInput] = queue.SimpleQueue()
        self._bodies = _bodies(manifest)
        self._engine = _Filled(
            manifest,
            MIDDLE,
            post=self._told.put,
            device=str(lab.device),
            graph_budget_bytes=1 << 40,
            compiled=compiled,
        )
        self._engine.initialise().result()

    @property
    def stage(self) -> Stage:
        assert self._engine._stage is not None, "it is initialised"
        return self._engine._stage

    def run(self, count: int) -> tuple[float, float]:
        """(seconds of so many microbatches, those in which the device did something)."""
        engine, (forward, backward) = self._engine, self._bodies
        engine.submit(Begin(PASS, PassKind.TRAIN))
        engine._thread.call(lambda: None).result()  # it has begun
        engine.meter.read()
        orders = (Forward(PASS, PassKind.TRAIN, Microbatch(m), forward) for m in range(count))
        start = time.perf_counter()
        for order in self._first(orders):
            engine.submit(order)
        done = 0
        while done < count:
            match self._told.get(timeout=120):
                case ForwardDone(microbatch=m):
                    engine.submit(Backward(PASS, m, backward))
                case BackwardDone():
                    done += 1
                    for order in orders:
                        engine.submit(order)
                        break
                case ComputeFailed() as failed:
                    raise RuntimeError(failed.reason)
        seconds = time.perf_counter() - start
        return seconds, sum(each.end - each.start for each in engine.meter.read())

    @staticmethod
    def _first(orders: Iterator[Forward]) -> list[Forward]:
        return [order for _, order in zip(range(IN_FLIGHT), orders, strict=False)]

    def close(self) -> None:
        self._engine.close()
        gc.collect()


def _cores(stage: Stage, manifest: RunManifest, count: int) -> None:
    batch, device = manifest.batch, stage._device
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width)
    x = torch.randn(shape, device=device).requires_grad_()
    gradient = torch.randn(shape, device=device) * 1e-3
    tokens = torch.zeros(shape[:2], dtype=torch.int64, device=device)
    leaves = tuple(stage._weights.leaves.values())
    for _ in range(count):
        with stage._precision.autocast(device):
            output = stage._module(x, tokens)
        torch.autograd.grad(output, (x, *leaves), gradient)


def _waits(lab: Lab, line: _Line) -> dict[str, float]:
    """By what the host called, a microbatch."""
    from torch.profiler import ProfilerActivity, profile

    count = 8
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        line.run(count)
        lab.wait()
    calls = {event.key: event.count / count for event in profiler.key_averages() if "ynchronize" in event.key}
    launches = sum(event.count for event in profiler.key_averages() if "LaunchKernel" in event.key)
    return {**calls, "launches": launches / count}


def _alone(lab: Lab, manifest: RunManifest) -> float:
    """Seconds of a forward and backward of the whole module under torch.compile."""
    module = build_stage(manifest.model, MIDDLE, device=lab.device, seed=None)
    _fill(dict(module.named_parameters()))
    precision = Precision.usual(lab.device)
    leaves = WorkingWeights(module, precision).leaves
    batch = manifest.batch
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width)
    x = torch.randn(shape, device=lab.device, requires_grad=True)
    tokens = torch.zeros(shape[:2], dtype=torch.int64, device=lab.device)
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(module, dynamic=False)

    def run() -> None:
        with precision.autocast(lab.device):
            output = compiled(x, tokens)
        torch.autograd.grad(output, (x, *leaves.values()), torch.ones_like(output))

    return statistics.median(lab.times(run, 7, 3))


if __name__ == "__main__":
    main()
