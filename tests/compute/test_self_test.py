"""Whether a device rounds as all others do is found before it has a part in the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peers.stage import offer
from swarm.compute import adamw, muon, offload, self_test
from swarm.compute.adamw import Factors
from swarm.compute.layout import Layout
from swarm.compute.optimizer import StageOptimizer
from swarm.events import EventLog, RoundsOtherwise
from swarm.manifest import OptimizerSection
from swarm.protocol.update import Update


def test_this_machine_rounds_as_all_others() -> None:
    assert self_test.rounds_alike("cpu")


def fused(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, factors: Factors, *_: torch.Tensor
) -> None:
    m.lerp_(g, factors.rest1)
    v.mul_(factors.beta2).addcmul_(g, g, value=factors.rest2)
    p.mul_(factors.shrink).addcdiv_(m, v.sqrt().mul_(factors.root).add_(factors.eps), value=-factors.rate)


def coarse_root(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, factors: Factors, *_: torch.Tensor
) -> None:
    m.mul_(factors.beta1).add_(g.mul(factors.rest1))
    v.mul_(factors.beta2).add_(g.mul(g).mul_(factors.rest2))
    root = torch.nextafter(v.sqrt(), v).mul_(factors.root).add_(factors.eps)
    p.mul_(factors.shrink).sub_(m.div(root).mul_(factors.rate))


def test_one_whose_products_are_not_exact_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = muon.orthogonal
    monkeypatch.setattr(muon, "orthogonal", lambda matrix: exact(matrix).mul_(1 + 2.0**-23))
    assert not self_test.rounds_alike("cpu")


@pytest.mark.parametrize("step", [fused, coarse_root])
def test_one_that_does_not_is_found(step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "_step", step)
    assert not self_test.rounds_alike("cpu")


def test_a_device_that_does_not_leaves_the_steps_to_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list = []
    log = EventLog(tmp_path / "log", lambda: 0.0)
    log.listeners.append(lambda event, at: events.append(event))
    monkeypatch.setattr(offer, "rounds_alike", lambda device: device == "cpu")
    assert offer.updates_here("cpu", log) and not events
    assert not offer.updates_here("cuda:0", log)
    assert events == [RoundsOtherwise("cuda:0")]
    monkeypatch.setattr(offer, "rounds_alike", lambda device: False)
    for device in ("cpu", "cuda:0"):
        with pytest.raises(offer.MachineError, match="in some bits"):
            offer.updates_here(device, log)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_made_elsewhere_come_back(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one device here, so that a copy stands for what lies on another one."""
    monkeypatch.setattr(offload, "STREAMED_AT_ONCE", 3)
    shapes = {
        "model.boundaries.senders.1.projector": (3, 7),
        "bias": (10,),
        "model.receivers.1.token_means": (5, 3),
        "model.layers.0.weight": (4, 5),
    }
    found = []
    for elsewhere in (None, torch.device("cpu")):
        parameters = {
            name: torch.nn.Parameter(torch.eye(*shape) if len(shape) == 2 else torch.ones(shape))
            for name, shape in shapes.items()
        }
        layout = Layout.of(parameters, with_loss=False)
        optimizer = StageOptimizer(parameters, layout, OptimizerSection(kind=kind), "ab" * 32, elsewhere=elsewhere)
        for step in range(3):
            flat = torch.linspace(-1, step, layout.length, dtype=torch.float64)
            optimizer.apply(flat, 0.5, Update(0.1, 0.1, 0.05))
        found.append((optimizer.digest(), optimizer.condition()))
    assert found[0] == found[1]
    assert not torch.equal(parameters["bias"].detach()[:1].expand(10), parameters["bias"].detach())
