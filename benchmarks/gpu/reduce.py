"""Time from the last backward to the applied step, of one of two replicas, in nanoseconds per parameter."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.exactness import AVERAGING, CHAIN
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.replicas import Replicas, T, kernels_of
from benchmarks.gpu.workload import ATTEMPT, PASS
from swarm.compute.digest import reduced_digest
from swarm.compute.layout import Layout
from swarm.compute.norm import squared_norm
from swarm.compute.optimizer import StageOptimizer
from swarm.compute.sums import Accumulator
from swarm.manifest import OptimizerSection, SumSection
from swarm.protocol.ids import Attempt, StageIndex
from swarm.protocol.update import update_of


def measure(lab: Lab) -> Found:
    """Nanoseconds a parameter of one replica. The other replica runs in this process too, for another machine."""
    size, tensors = (64, 2) if lab.smoke else (4096, 4)
    shapes = {f"{number}.weight": torch.Size((size, size)) for number in range(tensors)}
    layout = Layout(tuple(shapes), tuple(shapes.values()), with_loss=False)
    parameters = {name: torch.randn(shape, device=lab.device) * 0.02 for name, shape in shapes.items()}
    found: dict[str, Any] = {"parameters": layout.length, "triton": kernels_of(lab)}
    for averaging in AVERAGING:
        sums = SumSection(grid_bits=24, averaging=averaging)
        accumulators = [Accumulator(layout, sums, lab.device) for _ in range(2)]
        for accumulator in accumulators:
            accumulator.add([torch.randn(shape, device=lab.device) for shape in shapes.values()], step=0)
        gradients = [torch.randn(shape, device=lab.device) for shape in shapes.values()]
        row: dict[str, object] = {}
        if averaging == AVERAGING[0]:
            spare = Accumulator(layout, sums, lab.device)
            for _ in range(2):  # the second finds int64 where that is needed
                spare.add(gradients, step=0)
            row["add_ns"] = lab.median(partial(spare.add, gradients, step=0), 5, 1)
            del spare
        replicas = Replicas(accumulators, sums)
        row |= _phases(lab, replicas, parameters, layout)
        found[averaging] = {
            name: round(value / layout.length * 1e9, 3) if name.endswith("_ns") else value  # type: ignore[operator]
            for name, value in row.items()
        }
        print(json.dumps({averaging: found[averaging]}), flush=True)
        del accumulators, replicas, gradients
        lab.tidy()
    per_parameter = found[AVERAGING[0]]["exchange_norm_apply_ns"]
    aim = 1.0 if lab.cuda else 15.0
    return Found(
        found, (Aim.at_most("ns per parameter, reduce and apply, without hash and link", aim, per_parameter).of(lab),)
    )


def _phases(lab: Lab, replicas: Replicas, parameters: Mapping[str, Tensor], layout: Layout) -> dict[str, object]:
    """Seconds of one replica as `…_ns`, and of a processor of the host as `…_host_ns`.

    `part`, `sum` and `store` are timed one by one, the device awaited after each. `exchange` is not: both replicas'
    work, one order after the other as in a run, by two.
    """
    spent: dict[str, float] = defaultdict(float)

    def timed(replica: int, run: Callable[[], T], /) -> T:
        lab.wait()
        start, busy = time.perf_counter(), time.thread_time()
        result = run()
        lab.wait()
        if replica == 0:
            name = getattr(run, "func", run).__name__
            spent[f"{name}_ns"] += time.perf_counter() - start
            spent[f"{name}_host_ns"] += time.thread_time() - busy
        return result

    def at_once(number: int) -> None:
        replicas.run(lambda replica, run: run(), Attempt(PASS, StageIndex(0), number))
        for reduction in replicas.reductions:
            reduction.reduced(Attempt(PASS, StageIndex(0), number))  # what is put aside is read
            reduction.applied(Attempt(PASS, StageIndex(0), number), skipped=True)

    at_once(1)  # kernels are compiled, memory is there
    numbers = itertools.count(2)
    busy = time.thread_time()
    repeats = 3 if replicas.exact else 1  # the CPU takes seconds for a compressed one
    seconds = lab.times(lambda: at_once(next(numbers)), repeats, 0)
    exchange = statistics.median(seconds) / 2
    host = (time.thread_time() - busy) / 2 / repeats
    profile = profile_of(lab, lambda: at_once(next(numbers))) if lab.cuda and replicas.exact else {}
    crossed = replicas.run(timed)
    reduction = replicas.reductions[0]
    reduced = reduction.reduced(ATTEMPT)
    timed(0, partial(squared_norm, reduced, layout, reduction.unit))
    timed(0, partial(reduced_digest, reduced))
    timed(0, partial(reduction.assemble, ATTEMPT))
    digest = reduction.digest(ATTEMPT)
    optimizer = StageOptimizer(parameters, layout, OptimizerSection(), CHAIN)
    update = update_of(OptimizerSection(), 0, 100)
    for _ in range(2):  # the first finds its memory
        spent["apply_ns"] = spent["apply_host_ns"] = 0.0
        timed(0, partial(optimizer.apply, reduced, 1e-6, update, unit=reduction.unit, digest=digest))
    squares, apply = spent["squared_norm_ns"], spent["apply_ns"]
    row: dict[str, object] = {"exchange_ns": exchange, "exchange_host_ns": host, **spent}
    row["exchange_norm_apply_ns"] = exchange + squares + apply
    row["exchange_norm_apply_host_ns"] = host + spent["squared_norm_host_ns"] + spent["apply_host_ns"]
    row["bytes_crossed"] = round(sum(map(len, crossed)) / layout.length, 3)
    row["reduced_on"] = str(reduced.device)
    if profile:
        row["device_share_of_exchange"] = round(float(profile["device_ms"]) / 1e3 / (2 * exchange), 3)  # type: ignore[arg-type]
        row["profile"] = profile
    return row


def profile_of(lab: Lab, run: Callable[[], object]) -> dict[str, object]:
    """How often the host waits for the device and starts a kernel; which kernels take most of the device's time."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        lab.wait()
    averages = profiler.key_averages()
    kernels = [e for e in averages if e.device_type == DeviceType.CUDA and e.self_device_time_total > 0]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    return {
        "waits": sum(event.count for event in averages if "Synchronize" in event.key),
        "launches": sum(event.count for event in averages if "LaunchKernel" in event.key),
        "device_ms": round(sum(event.self_device_time_total for event in kernels) / 1e3, 3),
        "kernels_ms": [[e.key[:90], e.count, round(e.self_device_time_total / 1e3, 3)] for e in kernels[:14]],
    }
