"""Speed: microbatches one after another, from received bodies to packed ones, through a peer's engine.

A middle stage gets forwards, each followed by its backward, with at most four microbatches between the two, as in a
swarm whose links never wait. Figures:

* whole_ms: milliseconds per microbatch. `share`: the part of the device's measured matrix rate that the FLOP of the
  model need: 6 per parameter and token, and those of attention.
* core_ms: forward and backward of the same module, as many in a row, without bodies, sums and engine.
* alone_ms: the whole module under torch.compile, with matrices in half precision, as a training script would use it.
* idle: share of the time in which the device had work and did nothing.
* waits: how often each thread of the host waits for the device in a microbatch (forward and backward).
* peak_bytes: most that was allocated, per parameter.
"""

from __future__ import annotations

import gc
import queue
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.waits import Waits
from benchmarks.gpu.workload import MIDDLE, PASS, bodies_of, fill, run_of
from swarm.compute.engine import StageEngine
from swarm.compute.precision import Precision
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage, count_parameters
from swarm.protocol.ids import Microbatch, PassKind
from swarm.protocol.peer.io import Backward, BackwardDone, Begin, ComputeFailed, Forward, ForwardDone, PeerInput

IN_FLIGHT = 4
MICROBATCHES, ROUNDS = 24, 5
Shape = tuple[int, int, int, int, int, int]
"""dim, ffn, layers, sequences, length, subspace"""
FIRST: tuple[Shape, ...] = ((2048, 5632, 5, 4, 2048, 128),)
FURTHER: tuple[Shape, ...] = (
    (2048, 5632, 5, 4, 2048, 0),
    (4096, 14336, 2, 4, 2048, 128),
    (1024, 2816, 8, 4, 512, 128),
)
SMOKE: Shape = (64, 160, 2, 2, 32, 16)
MOST_IDLE, LEAST_SHARE, MOST_WAITS = 0.03, 0.95, 1.0


def measure(lab: Lab, shapes: Sequence[Shape]) -> Found:
    """Each shape plain and compiled."""
    if not lab.peak:
        lab.matrix_rate()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    for shape in (SMOKE,) if lab.smoke else shapes:
        dim, _, layers, sequences, length, subspace = shape
        name = f"{layers} layers of {dim}, {sequences} × {length} tokens, subspace {subspace or '-'}"
        manifest = run_of(*shape)
        rows: dict[str, Any] = {}
        figures[name] = rows
        ways = (False,) if lab.smoke else (False, True)  # compiling takes longer than all else of a smoke run
        for compiled in ways:
            lab.tidy()
            rows["compiled" if compiled else "plain"] = _row(lab, manifest, compiled)
        if len(ways) > 1:
            rows["alone_ms"] = round(1e3 * _alone(lab, manifest), 3)
            core = round(rows["alone_ms"] / rows["compiled"]["core_ms"], 3)
            aims.append(Aim.at_least(f"{name}: core ÷ module compiled alone", LEAST_SHARE, core))
        for way, row in rows.items():
            if isinstance(row, dict):
                aims += [aim.of(lab) for aim in _aims(f"{name}, {way}", row, lab)]
    return Found({"teraflop": round(lab.peak, 1), **figures}, tuple(aims))


def _aims(name: str, row: dict[str, Any], lab: Lab) -> list[Aim]:
    found = [
        Aim.at_least(f"{name}: whole ÷ core", LEAST_SHARE, row["whole_of_core"]),
        Aim.at_most(f"{name}: idle", MOST_IDLE, row["idle"]),
    ]
    waits = "waits of the launching thread per microbatch"
    if lab.cuda:
        found.append(Aim.at_most(f"{name}: {waits}", MOST_WAITS, row["waits_launching"]))
    else:
        found.append(Aim.cannot(f"{name}: {waits}", f"<= {MOST_WAITS:g}", "a CPU has computed when it is asked"))
    return found


def _row(lab: Lab, manifest: RunManifest, compiled: bool) -> dict[str, object]:
    microbatches, repeats = (4, 2) if lab.smoke else (MICROBATCHES, ROUNDS)
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
        rounds = sorted((line.run(microbatches) for _ in range(repeats)), key=lambda each: each[0])
        whole, busy = rounds[len(rounds) // 2]
        whole /= microbatches
        found["whole_ms"] = round(1e3 * whole, 3)
        found["spread"] = round((rounds[-1][0] - rounds[0][0]) / rounds[len(rounds) // 2][0], 3)
        found["idle"] = round(1 - busy / (whole * microbatches), 4)
        if lab.cuda:
            found["peak_bytes"] = round(torch.cuda.max_memory_allocated() / parameters, 2)
            waits = Waits()
            with waits.counted():
                line.run(8, begun=waits.forget)
            found |= waits.per_microbatch(8)
        # as many in a row, of numbers as random: a card that is never idle or multiplies zeros has another clock
        core = lab.median(partial(_cores, line.stage, manifest, microbatches), repeats, 1)
        core /= microbatches
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
        fill(stage.parameters)
        stage.loaded()
        return stage


class _Line:
    """An engine and what its neighbours would send it."""

    def __init__(self, lab: Lab, manifest: RunManifest, compiled: bool) -> None:
        self._told: queue.SimpleQueue[PeerInput] = queue.SimpleQueue()
        self._bodies = bodies_of(manifest)
        self._engine = _Filled(
            manifest, MIDDLE, StageOptions(str(lab.device), 1 << 40, compiled=compiled), post=self._told.put
        )
        self._engine.state.initialise().result()

    @property
    def stage(self) -> Stage:
        return self._engine.state.held()

    def run(self, count: int, begun: Callable[[], object] = lambda: None) -> tuple[float, float]:
        """Return the seconds of `count` microbatches, and those in which the device computed.

        `begun`: called before the first of them, when the pass has begun.
        """
        engine, (forward, backward) = self._engine, self._bodies
        engine.submit(Begin(PASS, PassKind.TRAIN))
        engine._thread.call(lambda: None).result()  # it has begun
        engine.meter.read()
        begun()
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
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width(1))
    x = torch.randn(shape, device=device).requires_grad_()
    gradient = torch.randn(shape, device=device) * 1e-3
    tokens = torch.zeros(shape[:2], dtype=torch.int64, device=device)
    leaves = tuple(stage._weights.leaves.values())
    for _ in range(count):
        with stage._precision.autocast(device):
            output = stage._module(x, tokens)
        torch.autograd.grad(output, (x, *leaves), gradient)


def _alone(lab: Lab, manifest: RunManifest) -> float:
    """Seconds of a forward and backward of the whole module under torch.compile."""
    module = build_stage(manifest.model, MIDDLE, device=lab.device, seed=None)
    fill(dict(module.named_parameters()))
    precision = Precision.usual(lab.device)
    leaves = WorkingWeights(module, precision).leaves
    batch = manifest.batch
    shape = (batch.sequences, batch.sequence_length, manifest.model.boundary_width(1))
    x = torch.randn(shape, device=lab.device, requires_grad=True)
    tokens = torch.zeros(shape[:2], dtype=torch.int64, device=lab.device)
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(module, dynamic=False)

    def run() -> None:
        with precision.autocast(lab.device):
            output = compiled(x, tokens)
        torch.autograd.grad(output, (x, *leaves.values()), torch.ones_like(output))

    return statistics.median(lab.times(run, 7, 3))
