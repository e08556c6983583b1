"""The step of Muon: what it makes of a matrix, against torch's, and products that are exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from swarm.compute import muon
from swarm.compute.layout import Layout
from swarm.compute.optimizer import StageOptimizer, is_hidden
from swarm.manifest import OptimizerSection
from swarm.models.initial import seeded_normal
from swarm.protocol.update import Update, update_of

SECTION = OptimizerSection(kind="muon", learning_rate=0.02, warmup_steps=2, weight_decay=0.3, momentum=0.9)
SHAPES = [(40, 40), (90, 30), (30, 90), (1, 50), (50, 1)]


def normal(name: str, *shape: int) -> torch.Tensor:
    return seeded_normal(name, torch.Size(shape), 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15])
def test_singular_values_are_near_one_and_vectors_are_kept(shape: tuple[int, int], size: float) -> None:
    matrix = normal("matrix", *shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ muon.orthogonal(matrix * size) @ right.T
    found = turned.diagonal()
    assert torch.all(found[values > 0.02 * values.norm()] > 0.65) and torch.all(found < 1.25)
    torch.testing.assert_close(turned, torch.diag(found), atol=2e-4, rtol=0)


def test_a_matrix_of_zeros_stays_one() -> None:
    assert not muon.orthogonal(torch.zeros(3, 5)).any()


class Products(TorchDispatchMode):
    """Checks that all products are exact: the factors are multiples of 2^-18, and no sum, even partial, reaches 2^5."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.count += 1
            for factor in args:
                assert factor.dtype == torch.float64 and torch.equal(factor * 2**18, (factor * 2**18).round())
            assert (args[0].norm(dim=1).max() * args[1].norm(dim=0).max()).item() < 4
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "ones", "one number", "steep"])
def test_products_are_exact_in_any_order(shape: tuple[int, int], kind: str) -> None:
    matrix = normal("matrix", *shape)
    if kind == "ones":
        matrix.fill_(1)
    if kind == "one number":
        matrix[1:], matrix[:, 1:] = 0, 0
    if kind == "steep":
        matrix *= torch.logspace(0, -8, shape[1])
    with Products() as products:
        muon.orthogonal(matrix)
    assert products.count == 15


@pytest.mark.parametrize("terms", [30, 9000])
@pytest.mark.parametrize("kind", ["normal", "ones", "wide"])
def test_split_products_have_the_same_bits(terms: int, kind: str) -> None:
    """As on cards. `wide`: all rests are as large as they can be, with one sign."""
    left, right = (normal(name, 20, terms).double() for name in ("left", "right"))
    if kind == "wide":
        left, right = torch.full_like(left, 2.0**-12 - 2.0**-18), torch.full_like(right, 2.0**-12 - 2.0**-18)
        left[:, 0], right[:, 0] = 1 + 2.0**-18, 1 + 2.0**-18
    if kind == "ones":
        left, right = left.sign(), right.abs()
    left, right = ((x / x.norm(dim=1, keepdim=True) * 1.3 * 2**18).round() / 2**18 for x in (left, right))
    assert torch.equal(muon.product(left, right.T, split=True), muon.product(left, right.T, split=False))


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_follow_those_of_torch(shape: tuple[int, int]) -> None:
    """They differ by what torch's products in bfloat16 lose."""
    ours, moments = normal("parameter", *shape), torch.zeros(2, *shape)
    theirs = torch.nn.Parameter(ours.clone())
    begun = ours.clone()
    torchs = torch.optim.Muon(
        [theirs], weight_decay=SECTION.weight_decay, momentum=SECTION.momentum, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(6):
        gradient, update = normal(f"gradient {step}", *shape), update_of(SECTION, step, 6)
        factors = muon.factors_of(SECTION, update)
        muon.step(ours, gradient.flatten() / 8, *moments, factors, update.learning_rate, 8.0)
        theirs.grad = gradient
        torchs.param_groups[0]["lr"] = update.learning_rate
        torchs.step()
    moved = (ours - begun).norm()
    assert moved > 0.05
    assert (ours - theirs).norm() < 0.03 * moved
    assert torch.all(moments[1] > 0), "the grids of rounded sums follow it"


def test_only_matrices_of_layers_are_muons() -> None:
    shapes = {
        "model.embed_tokens.weight": (7, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.0.first.weight": (4, 4, 3, 3),
        "model.layers.0.norm.weight": (4,),
        "model.boundaries.senders.1.projector": (3, 4),
        "model.receivers.1.token_means": (7, 3),
        "lm_head.weight": (7, 4),
    }
    parameters = {
        name: torch.nn.Parameter(torch.eye(*s) if len(s) == 2 else normal(name, *s)) for name, s in shapes.items()
    }
    assert {name for name, p in parameters.items() if is_hidden(name, p)} == {
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.first.weight",
    }
    layout = Layout.of(parameters, with_loss=False)
    found = {}
    for kind in ("adamw", "muon"):
        of = {name: torch.nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
        section = OptimizerSection(kind=kind)
        optimizer = StageOptimizer(of, layout, section, "ab" * 32)
        optimizer.apply(normal("sums", layout.length).double(), 0.5, Update(0.1, 0.1, 0.05))
        found[kind] = of
    assert {name for name in shapes if not torch.equal(found["adamw"][name], found["muon"][name])} == {
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.first.weight",
    }
    conv = "model.layers.0.first.weight"
    change = found["muon"][conv].detach() - parameters[conv].detach() * (1 - 0.1 * OptimizerSection().weight_decay)
    values = torch.linalg.svdvals(change.view(4, 36)) / (0.1 * 0.2 * math.sqrt(36))
    assert torch.all((values > 0.65) & (values < 1.25))
