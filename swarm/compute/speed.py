"""Speed: how fast this machine computes the run's own layers, measured before it takes part.

One layer of the model, with a real microbatch of the run's shapes, is run forward and backward on the device. What the
whole model would take follows by counting FLOP, so that machines compare whatever stages they will hold.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from swarm.compute.graph import autocast
from swarm.manifest import ModelSection, RunManifest
from swarm.models.cuts import flop_costs, stage_costs
from swarm.models.kinds import build_stage

LIMIT_S = 3.0
"""So long measuring takes, about. Where a microbatch takes longer, one sequence of it is measured."""
REPEATS = 4
_NICE = 10


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one microbatch through one layer, and what follows from them."""

    forward_s: float
    backward_s: float
    capacity: float
    """Microbatches a second, forward and backward, through the whole model."""


def measure_speed(manifest: RunManifest, device: str, threads: int, limit_s: float = LIMIT_S) -> Speed:
    """Blocks for `limit_s` or a little more. Others on this machine go first: it runs at low priority where it can.

    Raises RuntimeError when the device cannot compute a microbatch, for example for want of memory.
    """
    result: Future[Speed] = Future()

    def run() -> None:
        if hasattr(os, "setpriority"):  # of this thread alone, which ends
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        torch.set_num_threads(threads)
        try:
            result.set_result(_measure(manifest, device, limit_s))
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="measure", daemon=True).start()
    return result.result()


def _measure(manifest: RunManifest, device: str, limit_s: float) -> Speed:
    length, sequences = manifest.batch.sequence_length, manifest.batch.sequences
    layer = _Layer(manifest.model, length, device)
    layer.seconds(1)  # allocates, compiles
    forward_s, backward_s = layer.seconds(1)
    if REPEATS * sequences * (forward_s + backward_s) > limit_s:
        forward_s, backward_s = sequences * forward_s, sequences * backward_s
    else:  # the least of several: the rest is disturbance
        forward_s, backward_s = min((layer.seconds(sequences) for _ in range(REPEATS)), key=sum)
    costs = flop_costs(manifest.model, length)
    whole_s = (forward_s + backward_s) * sum(stage_costs(manifest.model, costs)) / costs.layer
    return Speed(forward_s, backward_s, 1.0 / max(whole_s, 1e-9))


class _Layer:
    """A stage of one layer, without embedding or head, and without what stands at cuts."""

    def __init__(self, model: ModelSection, length: int, device: str) -> None:
        shape = {"layers": 3, "cuts": (1, 2), "tail_layers": min(1, model.tail_layers)}
        plain = {"boundary": "none", "boundary_dim": 0, "receiver_hidden": 0, "token_table_dim": 0}
        model = model.model_copy(update={**shape, **plain})
        self._module = build_stage(model, 1, device=device, seed=0)
        self._width = model.boundary_width
        self._length = length
        self._device = torch.device(device)

    def seconds(self, rows: int) -> tuple[float, float]:
        """Of the forward and the backward of `rows` sequences."""
        tokens = torch.zeros((rows, self._length), dtype=torch.int64, device=self._device)
        x = torch.randn(rows, self._length, self._width, device=self._device, requires_grad=True)
        self._wait()
        start = time.perf_counter()
        with autocast(self._device):
            out = self._module(x, tokens)
        self._wait()
        middle = time.perf_counter()
        torch.autograd.grad(out, [x, *self._module.parameters()], torch.ones_like(out))
        self._wait()
        return middle - start, time.perf_counter() - middle

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
