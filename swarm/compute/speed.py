"""Measures how fast this machine computes the layers of the run, before it takes part.

It runs one layer of the model forward and backward on the device, with a microbatch of the run's shape. The time for
the whole model is extrapolated by FLOP, so that machines can be compared before they have a stage.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from swarm.compute.arithmetic import Arithmetic
from swarm.compute.graph import count_graph
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import ModelSection, RunManifest
from swarm.models.cuts import flop_costs, stage_costs
from swarm.models.kinds import build_stage

LIMIT_S = 3.0
"""Approximate seconds for a measurement. If a microbatch takes longer, only one sequence of it is measured."""
REPEATS = 4
_NICE = 10
_WORKING = 3
"""Peak memory of a backward, relative to the memory of the graph before it."""
_LEAST_LENGTH = 16
_SMALL_SIDE = 256
_PRODUCTS = 32


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one microbatch in one layer, and the resulting capacity."""

    forward_s: float
    backward_s: float
    capacity: float
    """Microbatches/s, forward and backward, through the whole model."""


def measure_speed(
    manifest: RunManifest, arithmetic: Arithmetic, limit_s: float = LIMIT_S, memory: int | None = None
) -> Speed:
    """Measure the speed; blocks for about `limit_s` seconds. It runs at low priority if the system allows this.

    `memory`: bytes it may use; if a microbatch needs more, a part of it is measured. Raises RuntimeError if the device
    cannot compute a microbatch, for example for lack of memory.
    """
    result: Future[Speed] = Future()

    def run() -> None:
        if hasattr(os, "setpriority"):  # affects only this thread, which ends after the measurement
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        torch.set_num_threads(arithmetic.threads)
        try:
            result.set_result(_measure(manifest, arithmetic, limit_s, memory))
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="measure", daemon=True).start()
    return result.result()


def _measure(manifest: RunManifest, arithmetic: Arithmetic, limit_s: float, memory: int | None) -> Speed:
    length, sequences = manifest.batch.sequence_length, manifest.batch.sequences
    part = _part(manifest, arithmetic, memory)
    if part is None:
        forward_s, backward_s = _by_multiplying(manifest, arithmetic.device)
    else:
        rows, part_length = part
        layer = _Layer(manifest.model, part_length, arithmetic, arithmetic.device)
        layer.seconds(1)  # warm up: allocate and compile
        forward_s, backward_s = layer.seconds(1)
        times = sequences * length / part_length
        if rows > 1 and REPEATS * rows * (forward_s + backward_s) <= limit_s:
            forward_s, backward_s = min(
                (layer.seconds(rows) for _ in range(REPEATS)), key=sum
            )  # longer times are due to disturbances
            times /= rows
        forward_s, backward_s = times * forward_s, times * backward_s
    costs = flop_costs(manifest.model, length)
    whole_s = (forward_s + backward_s) * sum(stage_costs(manifest.model, costs)) / costs.layer
    return Speed(forward_s, backward_s, 1.0 / max(whole_s, 1e-9))


def _part(manifest: RunManifest, arithmetic: Arithmetic, memory: int | None) -> tuple[int, int] | None:
    """(sequences, length) of the part of a microbatch that fits into `memory`; None if the layer alone does not fit."""
    rows, length = manifest.batch.sequences, manifest.batch.sequence_length
    if memory is None:
        return rows, length
    layer = _Layer(manifest.model, length, arithmetic, "meta")
    left = memory - layer.fixed_bytes
    if left <= 0:
        return None
    graph = layer.graph_bytes() * _WORKING
    if graph <= left:
        return min(rows, max(1, left // graph)), length
    while manifest.model.kind == "llama" and length > _LEAST_LENGTH and graph > left:
        length, graph = length // 2, graph // 2
    return (1, length) if graph <= left else None


def _by_multiplying(manifest: RunManifest, device: str) -> tuple[float, float]:
    """Seconds of a layer's forward and backward, estimated from the time of a small matrix product."""
    side = _SMALL_SIDE
    a, b = (torch.ones(side, side, device=device) for _ in range(2))
    (a @ b).sum().item()  # warm up: allocate and compile
    start = time.perf_counter()
    for _ in range(_PRODUCTS):
        b = a @ b / side
    b.sum().item()
    flop_per_s = 2 * side**3 * _PRODUCTS / (time.perf_counter() - start)
    flop = flop_costs(manifest.model, manifest.batch.sequence_length).layer
    tokens = manifest.batch.sequences * manifest.batch.sequence_length
    forward_s = flop * tokens / flop_per_s / 3
    return forward_s, 2 * forward_s


class _Layer:
    """A stage of one layer, without embedding, head and boundary modules."""

    def __init__(self, model: ModelSection, length: int, arithmetic: Arithmetic, device: str) -> None:
        """`arithmetic`: how to compute. `device`: that of `arithmetic`, or "meta" to count without computing."""
        shape = {"layers": 3, "cuts": (1, 2), "tail_layers": min(1, model.tail_layers)}
        plain = {
            "boundary": "none",
            "boundary_dim": 0,
            "receiver_hidden": 0,
            "token_table_dim": 0,
            "token_means": False,
        }
        model = model.model_copy(update={**shape, **plain})
        self._module = build_stage(model, 1, device=device, seed=None if device == "meta" else 0)
        self._module.make_room(length)
        self._arithmetic = arithmetic
        self._precision = arithmetic.precision
        if arithmetic.compiled and device != "meta":
            self._module.compile_layers()
        weights = WorkingWeights(self._module, self._precision)
        self._leaves, self._masters = list(weights.leaves.values()), list(weights.masters.values())
        self._width = model.boundary_width(1)
        self._length = length
        self._device = torch.device(device)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the parameters, their copies and gradients, and of temporary memory for their initial values."""
        sizes = [parameter.nbytes for parameter in self._masters]
        own = set(map(id, self._masters))
        copies = sum(leaf.nbytes for leaf in self._leaves if id(leaf) not in own)
        return 2 * sum(sizes) + copies + 2 * max(sizes) + sum(buffer.nbytes for buffer in self._module.buffers())

    def graph_bytes(self) -> int:
        """Bytes of the graph of one sequence between forward and backward."""
        tokens = torch.zeros((1, self._length), dtype=torch.int64, device=self._device)
        x = torch.zeros(1, self._length, self._width, device=self._device, requires_grad=True)
        return count_graph(self._module, x, tokens, self._arithmetic.mode).held

    def seconds(self, rows: int) -> tuple[float, float]:
        """Seconds of the forward and of the backward of `rows` sequences."""
        tokens = torch.zeros((rows, self._length), dtype=torch.int64, device=self._device)
        x = torch.randn(rows, self._length, self._width, device=self._device, requires_grad=True)
        self._wait()
        start = time.perf_counter()
        with self._precision.autocast(self._device):
            out = self._module(x, tokens)
        self._wait()
        middle = time.perf_counter()
        torch.autograd.grad(out, [x, *self._leaves], torch.ones_like(out))
        self._wait()
        return middle - start, time.perf_counter() - middle

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
