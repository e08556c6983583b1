"""The gradients of a stage: against those in fp64, computed twice, and from graphs that are kept or recomputed."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.workload import MIDDLE, bodies_of, compute_one, run_of
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.models.kinds import build_stage
from swarm.models.rms_norm import RMSNorm
from swarm.protocol.ids import PassKind


def measure(lab: Lab) -> Found:
    manifest = run_of(256, 640, 2, 2, 128)
    stage = Stage(manifest, MIDDLE, StageOptions(str(lab.device), 1 << 40), initialised=True)
    bodies = bodies_of(manifest)
    runs = []
    for budget in (1 << 40, 1 << 40, 0):
        stage.begin()
        stage.limit_graphs(budget)
        compute_one(stage, bodies)
        runs.append(stage._accumulator.flat.cpu())
    body = stage._format
    forward = body.unpack_forward(MIDDLE, bodies[0], PassKind.TRAIN)
    module = build_stage(manifest.model, MIDDLE, seed=manifest.run.seed).double()
    assert forward.hidden is not None, "a middle stage receives one"
    source = forward.hidden.double().requires_grad_()
    wanted = body.unpack_backward(MIDDLE + 1, bodies[1]).double()
    plain = RMSNorm.forward
    try:
        setattr(RMSNorm, "forward", _fp64_norm)  # noqa: B010 - the model's own goes through fp32
        found = torch.autograd.grad(module(source, forward.inputs), list(module.parameters()), wanted)
    finally:
        setattr(RMSNorm, "forward", plain)  # noqa: B010
    exact = torch.cat([gradient.reshape(-1) for gradient in found])
    error = float((runs[0] - exact).norm() / exact.norm())
    twice, again = torch.equal(runs[0], runs[1]), torch.equal(runs[0], runs[2])
    aims = (
        Aim.holds("a microbatch computed twice has the same bits", twice),
        Aim.holds("a recomputed graph gives the same bits as a kept one", again),
    )
    return Found({"relative_error": float(f"{error:.3g}")}, aims)


def _fp64_norm(self: RMSNorm, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps))
